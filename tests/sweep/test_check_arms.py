"""Everything that cannot run is refused at once, before anything starts."""

import re
from pathlib import Path

import pytest

from arl.errors import InputError
from arl.sweep.check_arms import CheckedSweep, check_arms
from arl.sweep.combinations import combine
from arl.sweep.request import SweepOptions, read_request
from tests.forks import ROOT


def check(recipe: Path, *axes: str) -> CheckedSweep:
    notes: list[str] = []
    return check_arms(read_request(recipe, SweepOptions(axes=axes)), notes.append)


@pytest.mark.parametrize(
    ("axis", "complaint"),
    [
        ("rollout.stalenes=1,2", "axis rollout.stalenes: a recipe has no such field; did you mean rollout.staleness?"),
        ("staleness=1,2", "axis staleness: a recipe has no such field; did you mean rollout.staleness?"),
        ("learning_rat=1", "did you mean train.learning_rate?"),
        ("xxxxxx=1", "axis xxxxxx: a recipe has no such field; docs/reference.md lists all of them"),
        ("seed=1,2", "axis seed: every arm runs with each of the seeds; give them by --seeds"),
        ("name=a,b", "name the sweep by --name"),
        ("output.samples=1,2", "no report could tell its arms apart; give it by --set"),
    ],
)
def test_an_axis_that_is_no_field_is_refused_with_the_nearest_one(recipe: Path, axis: str, complaint: str) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        check(recipe, axis)


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
        "2 arms (kind=ppo,proximal=loglinear,max_new_tokens=24; kind=ppo,proximal=loglinear,max_new_tokens=5000): "
        "--set objective.proximal=loglinear: objective.proximal: unknown key; valid: kind, "
    ) in message
    assert "2 arms (kind=decoupled_ppo,proximal=recompute,max_new_tokens=5000; " in message
    assert "exceed the model's context of 512: lower rollout.max_new_tokens to" in message
    assert "6 of 8 arms cannot run, and nothing was started" in message
    assert not (recipe.parent / "runs").exists()


def test_each_arm_has_the_recipe_of_its_settings(recipe: Path) -> None:
    checked = check(recipe, "objective={kind: ppo},{kind: decoupled_ppo, proximal: loglinear}", "train.steps=1,2")
    kinds = {arm.name: (arm.recipe.objective.kind, arm.recipe.train.steps) for arm in checked.arms}
    assert kinds["kind=ppo,steps=1"] == ("ppo", 1)
    assert kinds["kind=decoupled_ppo,proximal=loglinear,steps=2"] == ("decoupled_ppo", 2)
    assert checked.base.objective.kind == "decoupled_ppo"


@pytest.mark.parametrize(
    ("axis", "twins"),
    [
        ("train.learning_rate=1e-4,1.0e-4", "learning_rate=1e-4 and learning_rate=0.0001"),
        ("objective=ppo,{kind: ppo}", "objective=ppo and kind=ppo"),
    ],
)
def test_two_arms_that_compute_the_same_are_refused(recipe: Path, axis: str, twins: str) -> None:
    with pytest.raises(InputError, match=f"arms {twins}: their recipes are equal; leave one of the two out"):
        check(recipe, axis)


def test_arms_add_their_labels_to_those_of_the_recipe(recipe: Path) -> None:
    options = SweepOptions(axes=["rollout.staleness=8"], overrides=["output.wandb_tags=[mine]"])
    notes: list[str] = []
    (arm,) = check_arms(read_request(recipe, options), notes.append).arms
    assert arm.recipe.output.wandb_tags == ("mine", "staleness=8")
    assert arm.recipe.output.wandb_group == "small-sweep"
    own = SweepOptions(axes=["rollout.staleness=8"], overrides=["output.wandb_group=theirs"])
    (arm,) = check_arms(read_request(recipe, own), notes.append).arms
    assert arm.recipe.output.wandb_group == "theirs"


def test_the_study_of_staleness_has_every_objective_under_every_bound() -> None:
    request = read_request(Path(ROOT, "recipes/study/staleness.yaml"), SweepOptions())
    base = {"rollout.max_groups": None}
    names = [arm.name for arm in combine(request.axes, request.named, base=base)]
    assert len(names) == 21
    assert {"naive,staleness=0", "recompute,staleness=16", "loglinear,staleness=null,max_groups=1024"} < set(names)
    assert len(request.seeds) == 5
