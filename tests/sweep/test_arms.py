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


def test_an_arm_is_named_by_what_it_sets() -> None:
    names = list(combine([STALENESS, KIND], {}))
    assert names[0] == "staleness=0,kind=ppo"
    assert names[-1] == "staleness=null,kind=decoupled_ppo"
    both_kinds = make_axis({"advantage.kind": ["grpo"]}, "")
    assert next(iter(combine([KIND, both_kinds], {}))) == "objective.kind=ppo,advantage.kind=grpo"


def test_a_section_is_an_axis_and_its_fields_are_the_settings() -> None:
    axis = make_axis({"objective": [{"kind": "ppo"}, {"kind": "decoupled_ppo", "proximal": "loglinear"}]}, "")
    assert list(combine([axis], {})) == ["kind=ppo", "kind=decoupled_ppo,proximal=loglinear"]


def test_named_arms_are_combined_with_the_axes() -> None:
    named: dict[str, dict[str, Any]] = {"naive": {"objective.kind": "ppo"}, "other": {"train.steps": 3}}
    arms = combine([STALENESS], named)
    assert len(arms) == 6
    assert arms["naive,staleness=4"] == {"objective.kind": "ppo", "rollout.staleness": 4}
    assert list(combine([], named)) == ["naive", "other"]


def test_combinations_are_left_out_by_value_list_and_named_arm() -> None:
    def names(**rules: Any) -> list[str]:
        return list(combine([STALENESS, KIND], {}, **rules))

    assert len(names(exclude=[{"rollout.staleness": [4, None], "objective.kind": "ppo"}])) == 4
    left = combine([STALENESS], {"a": {"train.steps": 1}, "b": {"train.steps": 2}}, exclude=[{"arm": "a"}])
    assert {name.partition(",")[0] for name in left} == {"b"}


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


def check(recipe: Path, *axes: str) -> Sweep:
    notes: list[str] = []
    return check_arms(read_request(recipe, axes=axes), notes.append)


@pytest.mark.parametrize(
    ("axis", "complaint"),
    [
        ("rollout.stalenes=1,2", "rollout.stalenes: unknown key; did you mean staleness?"),
        ("seed=1,2", "axis seed: every arm runs with each of the seeds; give them by --seeds"),
        ("output.samples_every=1,2", "which is not what arms are compared by; give it by --set"),
    ],
)
def test_an_axis_that_is_no_field_is_refused_with_the_nearest_one(recipe: Path, axis: str, complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        check(recipe, axis)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("seed=5", "--set seed=5: every arm runs with each of the seeds; give them by --seeds"),
        ("name=x", "--set name=x: the sweep names its runs; name the sweep by --name"),
    ],
)
def test_what_the_sweep_sets_cannot_be_set_in_every_arm(recipe: Path, override: str, complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        read_request(recipe, overrides=[override])


def test_a_sweep_with_slurm_says_that_it_needs_an_allocation(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    request = read_request(recipe, axes=["train.minibatches=1,2"], overrides=["launcher=slurm"])
    with pytest.raises(InputError, match=r"launcher slurm: a sweep submits no jobs.*make one with salloc or sbatch"):
        check_arms(request, lambda note: None)


def test_a_sweep_with_ray_says_that_runs_are_started_by_hand(recipe: Path) -> None:
    request = read_request(recipe, axes=["train.minibatches=1,2"], overrides=["launcher=ray"])
    with pytest.raises(InputError, match="launcher ray: a sweep would keep the nodes of the cluster from its own runs"):
        check_arms(request, lambda note: None)


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


@pytest.mark.parametrize(
    ("axis", "twins"),
    [
        ("train.learning_rate='1e-4',1.0e-4", "learning_rate=1e-4 and learning_rate=0.0001"),
        ("objective=ppo,{kind: ppo}", "objective=ppo and kind=ppo"),
    ],
)
def test_two_arms_that_compute_the_same_are_refused(recipe: Path, axis: str, twins: str) -> None:
    with pytest.raises(InputError, match=f"arms {twins}: their recipes are equal; leave one of the two out"):
        check(recipe, axis)
