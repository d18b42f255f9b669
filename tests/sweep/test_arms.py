"""Axes are combined into arms, each with a directory of its own; what cannot run is refused before anything starts."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import InputError
from arl.sweep.request import make_axis, read_request
from arl.sweep.sweep_arms import Sweep, check_arms, combine

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
    assert len({tuple(given.items()) for given in arms.values()}) == len(arms)
    for name in arms:
        assert re.fullmatch(r"[A-Za-z0-9._=+,-]+", name)
        assert len(name) < 200


def test_named_arms_are_combined_with_the_axes_and_combinations_left_out() -> None:
    named: dict[str, dict[str, Any]] = {"naive": {"objective.kind": "ppo"}, "other": {"train.steps": 3}}
    arms = combine([STALENESS], named, exclude=[{"arm": "other", "rollout.staleness": [4, None]}])
    assert list(arms) == ["naive,staleness=0", "naive,staleness=4", "naive,staleness=null", "other,staleness=0"]
    assert arms["naive,staleness=4"] == {"objective.kind": "ppo", "rollout.staleness": 4}
    assert list(combine([], named)) == ["naive", "other"]


def test_a_rule_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(InputError, match=r"exclude .'train.steps': 1.: no combination has these values"):
        combine([STALENESS, KIND], {}, exclude=[{"train.steps": 1}])
    with pytest.raises(InputError, match="the sweep has no arm"):
        combine([STALENESS, KIND], {}, exclude=[{"objective.kind": ["ppo", "decoupled_ppo"]}])


def check(recipe: Path, *axes: str) -> Sweep:
    return check_arms(read_request(recipe, axes=axes), lambda note: None)


def test_an_axis_that_is_no_field_or_only_output_is_refused(recipe: Path) -> None:
    with pytest.raises(InputError, match=r"rollout.stalenes: unknown key; did you mean staleness\?"):
        check(recipe, "rollout.stalenes=1,2")
    with pytest.raises(InputError, match="which is not what arms are compared by; give it by --set"):
        check(recipe, "output.samples_every=1,2")


def test_a_sweep_that_cannot_get_its_nodes_is_refused(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for launcher, rule in {"slurm": "submits no jobs", "ray": "would keep the nodes of the cluster"}.items():
        with pytest.raises(InputError, match=f"launcher {launcher}: a sweep {rule}"):
            check_arms(read_request(recipe, overrides=[f"launcher={launcher}"]), lambda note: None)


def test_a_recipe_that_only_its_arms_complete_is_refused_with_the_remedy(recipe: Path) -> None:
    recipe.write_text(recipe.read_text().replace("hidden_size: 32", "hidden_size: 0"))
    with pytest.raises(InputError, match=r"(?s)small.yaml:4: .*small.yaml: must be a valid recipe also without"):
        check(recipe, "model.tiny.hidden_size=32,64")


def test_all_arms_that_cannot_run_are_named_with_value_rule_and_remedy(recipe: Path) -> None:
    axes = [
        "objective.kind=ppo,decoupled_ppo",
        "objective.proximal=recompute,loglinear",
        "rollout.max_new_tokens=24,5000",
    ]
    with pytest.raises(InputError) as refused:
        check(recipe, *axes)
    message = str(refused.value)
    assert (
        "4 arms (kind=ppo,proximal=recompute,max_new_tokens=24; kind=ppo,proximal=recompute,max_new_tokens=5000; "
        "kind=ppo,proximal=loglinear,max_new_tokens=24; kind=ppo,proximal=loglinear,max_new_tokens=5000): "
        "objective.proximal: unknown key; valid: kind, "
    ) in message
    assert "2 arms (kind=decoupled_ppo,proximal=recompute,max_new_tokens=5000; " in message
    assert "exceed the model's context of 512: lower rollout.max_new_tokens to" in message
    assert "6 of 8 arms cannot run, and nothing was started" in message
    assert not (recipe.parent / "runs").exists()


def test_two_arms_that_compute_the_same_are_refused(recipe: Path) -> None:
    with pytest.raises(InputError, match="arms objective=ppo and kind=ppo: their recipes are equal; leave one of the"):
        check(recipe, "objective=ppo,{kind: ppo}")
