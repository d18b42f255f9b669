"""Axes are combined into arms, each with a directory of its own."""

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import InputError
from arl.sweep.axes import make_axis
from arl.sweep.combinations import combine

STALENESS = make_axis({"rollout.staleness": [0, 4, None]}, "")
KIND = make_axis({"objective.kind": ["ppo", "decoupled_ppo"]}, "")

fields = st.sampled_from(
    ["rollout.staleness", "rollout.lag", "train.steps", "objective.kind", "advantage.kind", "mode"]
)
values = st.lists(st.integers(0, 99) | st.sampled_from(["ppo", "my:Own", "x/y"]) | st.none(), min_size=1, max_size=4)
grids = st.dictionaries(fields, values.map(lambda listed: list(dict.fromkeys(listed))), min_size=1, max_size=4)


@given(grids)
def test_every_combination_is_an_arm_with_a_directory_of_its_own(grid: dict[str, list[Any]]) -> None:
    arms = combine([make_axis({field: listed}, "") for field, listed in grid.items()], {})
    assert len(arms) == math.prod(map(len, grid.values()))
    assert len({tuple(arm.settings.items()) for arm in arms}) == len(arms)
    assert len({arm.name for arm in arms}) == len(arms)
    for arm in arms:
        assert re.fullmatch(r"[A-Za-z0-9._=+,-]+", arm.name)
        assert len(arm.name) < 200


def test_an_arm_is_named_by_what_it_sets() -> None:
    names = [arm.name for arm in combine([STALENESS, KIND], {})]
    assert names[0] == "staleness=0,kind=ppo"
    assert names[-1] == "staleness=null,kind=decoupled_ppo"
    both_kinds = make_axis({"advantage.kind": ["grpo"]}, "")
    assert combine([KIND, both_kinds], {})[0].name == "objective.kind=ppo,advantage.kind=grpo"


def test_a_section_is_an_axis_and_its_fields_are_the_settings() -> None:
    axis = make_axis({"objective": [{"kind": "ppo"}, {"kind": "decoupled_ppo", "proximal": "loglinear"}]}, "")
    first, second = combine([axis], {})
    assert first.settings == {"objective.kind": "ppo"}
    assert second.name == "kind=decoupled_ppo,proximal=loglinear"


def test_named_arms_are_combined_with_the_axes() -> None:
    named: dict[str, dict[str, Any]] = {"naive": {"objective.kind": "ppo"}, "other": {"train.steps": 3}}
    arms = combine([STALENESS], named)
    assert len(arms) == 6
    assert arms[1].name == "naive,staleness=4"
    assert arms[1].settings == {"objective.kind": "ppo", "rollout.staleness": 4}
    assert [arm.name for arm in combine([], named)] == ["naive", "other"]


def test_combinations_are_left_out_by_value_list_and_named_arm() -> None:
    def names(**rules: Any) -> list[str]:
        return [arm.name for arm in combine([STALENESS, KIND], {}, **rules)]

    assert len(names(exclude=[{"rollout.staleness": [4, None], "objective.kind": "ppo"}])) == 4
    left = combine([STALENESS], {"a": {"train.steps": 1}, "b": {"train.steps": 2}}, exclude=[{"arm": "a"}])
    assert {arm.name.partition(",")[0] for arm in left} == {"b"}


@pytest.mark.parametrize(
    ("rules", "complaint"),
    [
        ({"exclude": [{"train.steps": 1}]}, "train.steps is no axis; the axes are objective.kind, rollout.staleness"),
        ({"exclude": [{"rollout.staleness": 5}]}, "no combination has these values"),
        ({"exclude": [{"objective.kind": ["ppo", "decoupled_ppo"]}]}, "the sweep has no arm"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rules: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        combine([STALENESS, KIND], {}, **rules)


def test_a_field_belongs_to_one_axis() -> None:
    section = make_axis({"objective": [{"kind": "ppo"}]}, "")
    for axes, named in [
        ([STALENESS, STALENESS], {}),
        ([KIND, section], {}),
        ([KIND], {"a": {"objective.kind": "ppo"}}),
    ]:
        with pytest.raises(InputError, match="two axes set it"):
            combine(axes, named)
