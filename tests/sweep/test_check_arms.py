"""Everything that cannot run is refused at once, before anything starts."""

import re
from pathlib import Path

import pytest

from arl.errors import InputError
from arl.sweep.check_arms import CheckedSweep, check_arms
from arl.sweep.request import SweepOptions, read_request


def check(recipe: Path, *axes: str) -> CheckedSweep:
    notes: list[str] = []
    return check_arms(read_request(recipe, SweepOptions(axes=axes)), notes.append)


@pytest.mark.parametrize(
    ("axis", "complaint"),
    [
        ("rollout.stalenes=1,2", "rollout.stalenes: unknown key; did you mean staleness?"),
        ("staleness=1,2", "staleness: unknown key; did you mean rollout.staleness?"),
        ("learning_rat=1", "arm learning_rat=1: learning_rat: unknown key; did you mean train.learning_rate?"),
        ("xxxxxx=1", "xxxxxx: unknown key; valid: name, seed, mode, launcher, cluster, world, "),
        ("seed=1,2", "axis seed: every arm runs with each of the seeds; give them by --seeds"),
        ("name=a,b", "name the sweep by --name"),
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
        read_request(recipe, SweepOptions(overrides=[override]))


def test_a_sweep_with_slurm_says_that_it_needs_an_allocation(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    request = read_request(recipe, SweepOptions(axes=["train.minibatches=1,2"], overrides=["launcher=slurm"]))
    with pytest.raises(InputError, match=r"launcher slurm: a sweep submits no jobs.*make one with salloc or sbatch"):
        check_arms(request, lambda note: None)


def test_a_sweep_with_ray_says_that_runs_are_started_by_hand(recipe: Path) -> None:
    request = read_request(recipe, SweepOptions(axes=["train.minibatches=1,2"], overrides=["launcher=ray"]))
    with pytest.raises(InputError, match="launcher ray: a sweep would keep the nodes of the cluster from its own runs"):
        check_arms(request, lambda note: None)


def test_without_seeds_the_arms_have_the_seed_of_the_recipe(recipe: Path) -> None:
    recipe.write_text(f"seed: 7\n{recipe.read_text()}")
    assert check(recipe, "rollout.staleness=0,1").seeds == [7]


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
