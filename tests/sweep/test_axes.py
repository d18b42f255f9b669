"""Axes are read from the command line as `--set` reads values."""

from typing import Any

import pytest
from hypothesis import given

from arl.config.yaml_loader import load_yaml
from arl.errors import InputError
from arl.sweep.axes import make_axis, parse_axis, write_override
from tests.config.test_yaml_loader import values


@given(values)
def test_a_setting_is_read_by_set_as_it_was_given(value: Any) -> None:
    _, _, text = write_override("a.b", value).partition("=")
    assert load_yaml(text) == value


@pytest.mark.parametrize(
    ("text", "listed"),
    [
        ("0,1,4", [0, 1, 4]),
        ("null,1.5e-4,ppo", [None, 1.5e-4, "ppo"]),
        ("[gsm8k,math500],[]", [["gsm8k", "math500"], []]),
        (
            "{kind: ppo},{kind: decoupled_ppo, proximal: loglinear}",
            [{"kind": "ppo"}, {"kind": "decoupled_ppo", "proximal": "loglinear"}],
        ),
        ("my_module:Mine,'a, b'", ["my_module:Mine", "a, b"]),
    ],
)
def test_commas_separate_values_unless_brackets_or_quotes_hold_them(text: str, listed: list[Any]) -> None:
    assert parse_axis(f"a.b={text}") == ("a.b", listed)


@pytest.mark.parametrize("text", ["rollout.staleness", "=1,2", "a.b=[1,2", "a.b=1,,2"])
def test_an_axis_without_field_or_values_is_refused_with_its_form(text: str) -> None:
    with pytest.raises(InputError, match=r"--axis .*(write it as section.field=value,value|not valid YAML)"):
        parse_axis(text)


def test_fields_that_change_together_have_equally_many_values() -> None:
    axis = make_axis({"a.b": [1, 2], "c.d": ["x", "y"]}, "--paired")
    assert axis.points == ({"a.b": 1, "c.d": "x"}, {"a.b": 2, "c.d": "y"})
    with pytest.raises(InputError, match=r"equally many values: a\.b has 2, c\.d has 1"):
        make_axis({"a.b": [1, 2], "c.d": ["x"]}, "--paired")
    with pytest.raises(InputError, match="are the same point"):
        make_axis({"a.b": [1, 2, 1]}, "--axis a.b=1,2,1")
    with pytest.raises(InputError, match=r"\{'a.b': 1\} and \{'a.b': 1.0\} are the same point"):
        make_axis({"a.b": [1, 1.0]}, "--axis a.b=1,1.0")
    with pytest.raises(InputError, match="at least one field and one value"):
        make_axis({"a.b": []}, "--axis a.b=")
