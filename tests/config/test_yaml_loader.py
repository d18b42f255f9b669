"""YAML is read by the core schema of YAML 1.2 alone, within bounds, and what is written is read as the same values."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.yaml_loader import MOST_BYTES, MOST_DEPTH, MOST_VALUES, YamlError, dump_yaml, load_yaml, read_document

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
TOWER = "a0: &a0 1\n" + "".join(f"a{n}: &a{n} {'[' * 20}*a{n - 1}{']' * 20}\n" for n in range(1, 60))

text = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t\x85"), max_size=12)
lookalikes = ["yes", "off", "1_000", "0o17", "0x1F", "017", "1e-6", ".inf", "~", "<<", "12:30:45", "2001-01-01"]
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


def refusal(data: bytes | str) -> YamlError:
    with pytest.raises(YamlError) as caught:
        read_document(data)
    return caught.value


@given(values, st.booleans())
def test_what_is_written_is_read_as_the_same_values(value: Any, flow: bool) -> None:
    held = {"value": value}
    assert load_yaml(dump_yaml(held, flow=flow)) == held


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("True", True),
        ("yes", "yes"),
        ("off", "off"),
        ("017", 17),
        ("0o17", 15),
        ("0xfF", 255),
        ("1_000", "1_000"),
        ("12:30:45", "12:30:45"),
        ("2001-12-32", "2001-12-32"),
        ("1e-6", 1e-6),
        ("-.INF", -math.inf),
        ("'7'", "7"),
        ("٣", "٣"),
        ("{1: a, null: b}", {"1": "a", "null": "b"}),
        ("{a: &a [1], b: *a}", {"a": [1], "b": [1]}),
    ],
)
def test_scalars_are_those_of_the_core_schema(text: str, value: Any) -> None:
    assert load_yaml(text) == value


@pytest.mark.parametrize(
    ("data", "line", "rule"),
    [
        ("a: 1\n!!int '': 2", 2, "without a tag"),
        ("a: !!python/object/apply:os.getcwd []", 1, "tags are not read"),
        ("a: !!binary eA==", 1, "tags are not read"),
        ("a: {b: 1,\n b: 2}", 2, "a.b is given twice"),
        ("a: 1\nb: {<<: {c: 1}}", 2, "merge keys are not read"),
        ("[a]: 1", 1, "the key of a mapping is text"),
        ("a: 1\n---\nb: 2", 2, "a second document"),
        (f"a: {'9' * 5_000}", 1, "beyond 64 bits"),
        (f"a: {2**63}", 1, "beyond 64 bits"),
        ("a: 1e400", 1, "too large for a number"),
        ("a: &a [*a]", 1, "has the anchor"),
        ("\n\na: b\n\tc: d", 4, "not valid YAML"),
        ('a: "\\0"', 1, "cannot be part of a text"),
        ('a: "\\ud800"', 1, "cannot be part of a text"),
        ('a: "\\U00110000"', None, "not valid YAML"),
        ("%YAML 1." + "9" * 5_000 + "\n---\na", None, "not valid YAML"),
        (b"a: 1\nb: \xff", 2, "not UTF-8"),
        ("a: 1".encode("utf-16"), 1, "not UTF-8"),
        (b"a: \0", 1, "not allowed"),
        ("#" * (MOST_BYTES + 1), None, "may have"),
        ("[" * 50_000, 1, f"more than {MOST_DEPTH} deep"),
        ("- " * 50_000, 1, f"more than {MOST_DEPTH} deep"),
        ("[" + "1," * MOST_VALUES + "]", 1, f"more than {MOST_VALUES} keys and values"),
        (f"a: &a {'x' * 20_000}\nb: [*a]", 2, "characters of text"),
        (BOMB, 8, f"more than {MOST_VALUES} keys and values"),
        (TOWER, 3, f"more than {MOST_DEPTH} deep"),
    ],
)
def test_what_is_refused_is_named_with_its_line(data: bytes | str, line: int | None, rule: str) -> None:
    found = refusal(data)
    assert rule in found.rule
    assert found.line == line


def test_a_byte_order_mark_and_line_ends_of_windows_are_read() -> None:
    assert read_document(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n").values == {"a": 1, "b": 2}


def test_keys_know_their_line_in_lists_too() -> None:
    document = read_document("axes:\n  - a: 1\n  - a: 1\n    b: 2\n")
    assert document.lines[("axes", 1, "b")] == 4
