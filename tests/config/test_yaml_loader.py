"""YAML is read by the core schema of YAML 1.2, and what is written is read as the same values."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.yaml_loader import YamlError, dump_yaml, load_yaml, read_document

text = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t\x85"), max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | text
    | st.sampled_from(
        ["yes", "off", "1_000", "0o17", "0x1F", "017", "1e-6", ".inf", "~", "<<", "12:30:45", "2001-01-01"]
    )
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)


@given(values, st.booleans())
def test_what_is_written_is_read_as_the_same_values(value: Any, flow: bool) -> None:
    held = {"value": value}
    assert load_yaml(dump_yaml(held, flow=flow)) == held


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("off", "off"),
        ("017", 17),
        ("0o17", 15),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("1e-6", 1e-6),
        ("-.INF", -math.inf),
        ("{1: a, null: b}", {"1": "a", "null": "b"}),
    ],
)
def test_scalars_are_those_of_the_core_schema(text: str, value: Any) -> None:
    assert load_yaml(text) == value


@pytest.mark.parametrize(
    ("data", "line", "rule"),
    [
        ("a: {b: 1,\n b: 2}", 2, "a.b is given twice"),
        ("[a]: 1", 1, "the key of a mapping is text"),
        ("a: [1,\n2\nb: 3", 3, "not valid YAML: expected ',' or ']'"),
        ("\n\na: b\n\tc: d", 4, "not valid YAML"),
        (b"a: 1\nb: \xff", None, "not valid YAML: 'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_what_is_refused_is_named_with_its_line(data: bytes | str, line: int | None, rule: str) -> None:
    with pytest.raises(YamlError) as caught:
        read_document(data)
    assert rule in caught.value.rule
    assert caught.value.line == line


def test_keys_know_their_line_in_lists_too() -> None:
    document = read_document("axes:\n  - a: 1\n  - a: 1\n    b: 2\n")
    assert document.lines[("axes", 1, "b")] == 4
