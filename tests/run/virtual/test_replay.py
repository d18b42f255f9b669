"""A finished run is trained again from what it recorded: the same to the last bit, or under other rules."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from arl.errors import DataError, InputError, RecipeError, RunError
from arl.metrics.summary import weights_sha256
from arl.run.replay.replay_world import plan_replay, replay
from tests.forks import arl
from tests.run.test_train import Command
from tests.run.virtual.test_virtual import Ran, Start, run_in, silent

WORLDS = {
    "two replicas, cache kept, in segments": "engine.replicas=2 engine.kv_policy=keep virtual.load=0.05 seed=1 "
    "output.checkpoint_every=2 virtual.train_step=1 rollout.staleness=3",
    "collocated, some groups rejected": "mode=collocated objective.proximal=loglinear virtual.engine_pass=0.02 "
    "rollout.filter=tests.run.virtual.test_resume:odd rollout.max_groups=6 seed=2",
    "late groups dropped": "rollout.late=drop rollout.staleness=1 virtual.train_step=0.001 virtual.engine_pass=0.01",
    "many ties": "virtual.train_step=0.01 virtual.trained_token=0 virtual.snapshot=0 virtual.engine_pass=0.01 "
    "virtual.decode_token=0 virtual.prefill_token=0 virtual.publish=0 virtual.load=0 virtual.reward=0",
    "exact lag": "rollout.staleness=null rollout.lag=2 virtual.publish=0.1",
}
SAME = ("loss", "grad_norm", "entropy", "reward/trained_mean", "staleness/mean", "learning_rate")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """One finished run for all tests that leave it as it is."""
    return run_in(tmp_path_factory.mktemp("recorded"), "eval.problems=0", "output.checkpoint_every=3")


def again(run: Ran, *overrides: str) -> Ran:
    return Ran(Path(replay(run.directory, overrides, silent())[0].directory))


@pytest.mark.parametrize("world", WORLDS)
def test_the_same_settings_give_the_same_run_to_the_last_bit(start: Start, world: str) -> None:
    run = start(*WORLDS[world].split())
    replayed = again(run)
    assert replayed.directory.name == "small-replay"
    assert replayed.summary.weights_sha256 == run.summary.weights_sha256
    assert replayed.schedule() == run.schedule()
    assert replayed.summary.groups == run.summary.groups
    assert replayed.summary.token_ages == run.summary.token_ages
    assert replayed.summary.accuracy_before == run.summary.accuracy_before
    assert replayed.summary.accuracy_after == run.summary.accuracy_after
    one_pass = 0.05 if world.startswith("collocated") else 1e-6  # a recorded engine has no pass to end before it pauses
    for one, other in zip(replayed.records(), run.records(), strict=True):
        assert {name: one[name] for name in SAME} == {name: other[name] for name in SAME}
        assert one["time_s"] == pytest.approx(other["time_s"], abs=one_pass)
    for a, b in zip(run.rows(), replayed.rows(), strict=True):
        assert {k: a[k] for k in a if "time" not in k and k != "arrival_version"} == {
            k: b[k] for k in b if "time" not in k and k != "arrival_version"
        }
    if world == "exact lag":
        with pytest.raises(RecipeError, match=r"rollout.lag = 0: the run was recorded with 2"):
            again(run, "rollout.lag=0")


def test_another_objective_learns_other_weights_from_the_same_batches(recorded: Ran) -> None:
    naive = again(recorded, "objective.kind=ppo", "train.learning_rate=1e-3", "eval.problems=8", "name=naive")
    assert naive.directory.name == "naive"
    assert naive.schedule() == recorded.schedule()
    assert naive.summary.weights_sha256 != recorded.summary.weights_sha256
    assert "behavior_weight/mean" not in naive.records()[0]
    assert naive.summary.accuracy_before is not None
    assert naive.summary.eval_problems == 8


def test_fewer_steps_are_the_first_steps(recorded: Ran) -> None:
    replayed = again(recorded, "train.steps=3", "output.checkpoint_every=2", "name=fewer")
    assert replayed.summary.weights_sha256 == weights_sha256(recorded.directory / "checkpoints" / "step_3")
    assert replayed.schedule() == [place for place in recorded.schedule() if place[0] < 3]
    assert {f.name for f in (replayed.directory / "checkpoints").iterdir()} == {"step_2", "step_3"}


def test_under_a_lower_bound_nothing_older_is_trained_and_what_is_lost_is_counted(start: Start) -> None:
    run = start("rollout.staleness=4", "train.steps=8", "eval.problems=0")
    assert max(run.ages()) > 1
    for staleness in (0, 1):
        replayed = again(run, f"rollout.staleness={staleness}", f"name=bound-{staleness}")
        summary = replayed.summary
        assert 0 < summary.steps < 8
        assert replayed.ages() <= set(range(staleness + 1))
        assert summary.groups["too old for this bound"] > 0
        assert summary.groups["trained"] == 4 * summary.steps
        assert summary.groups["in flight"] < 4  # no batch
        assert sum(summary.groups.values()) <= sum(run.summary.groups.values())
        assert replayed.fates() == {fate: count for fate, count in summary.groups.items() if fate != "in flight"}
        last = replayed.directory / "checkpoints" / f"step_{summary.steps}"
        assert summary.weights_sha256 == weights_sha256(last)


def test_without_the_filter_its_rejects_are_trained(start: Start) -> None:
    run = start("rollout.filter=tests.run.virtual.test_resume:odd", "rollout.staleness=1", "eval.problems=0")
    assert run.summary.groups["rejected"] > 0
    replayed = again(run, "rollout.filter=null", "rollout.staleness=3")
    assert replayed.ages() <= {0, 1, 2, 3}
    recorded = {group for _, group in run.schedule()}
    assert {group for _, group in replayed.schedule()} - recorded


def test_where_nothing_can_be_trained_the_replay_fails_and_says_what_was_lost(recorded: Ran) -> None:
    with pytest.raises(RunError, match=r"not one step can be trained.*'rejected': "):
        again(recorded, f"rollout.filter={__name__}:none", "rollout.max_rejected_share=0.999", "name=nothing")


def none(problem: Any, trajectories: Any) -> bool:
    """A filter that likes nothing."""
    return False


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("rollout.group_size=8", "rollout.group_size = 8: the run was recorded with 4"),
        ("virtual.engine_pass=1", "a recording cannot be changed; a replay may change name, advantage"),
        ("world=wall", "world = 'wall'"),
        ("train.threads=1", "train.threads"),
        ("train.steps=7", "train.steps 7: .* recorded 6"),
    ],
)
def test_what_a_recording_cannot_give_is_refused_before_anything_is_written(
    recorded: Ran, override: str, complaint: str
) -> None:
    before = list(recorded.directory.parent.iterdir())
    with pytest.raises((RecipeError, InputError), match=complaint):
        again(recorded, override)
    assert list(recorded.directory.parent.iterdir()) == before


def test_what_is_no_recording_is_refused(recorded: Ran, tmp_path: Path) -> None:
    run = Path(shutil.copytree(recorded.directory, tmp_path / "small"))
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(recipe.replace("size: 500", "size: 5"))
    with pytest.raises(DataError, match="is not in running_checksum; replay with the problems"):
        plan_replay(run, ())
    (run / "recipe.yaml").write_text(recipe)
    (run / "summary.json").unlink()
    with pytest.raises(InputError, match=r"small: no summary\.json, so no finished run"):
        plan_replay(run, ())


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """A run of real processes, on the wall clock; without checkpoints, whose copies count as parts of steps."""
    command = Command(tmp_path, "output.checkpoint_every=0", "train.steps=4", "rollout.late=drop", "eval.problems=4")
    yield command
    command.clear()


def test_a_run_of_processes_is_replayed_batch_by_batch(command: Command, tmp_path: Path) -> None:
    assert command.end() == 0, command.output
    done = arl("replay", "runs/small", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
    recorded = Ran(tmp_path / "runs" / "small")
    replayed = Ran(tmp_path / "runs" / "small-replay")
    assert replayed.schedule() == recorded.schedule()
    assert replayed.summary.accuracy_before == recorded.summary.accuracy_before
    assert replayed.summary.token_ages == recorded.summary.token_ages
    one, other = (itertools.pairwise(r["time_s"] for r in run.records()) for run in (recorded, replayed))
    off = [abs((d - c) - (b - a)) for (a, b), (c, d) in zip(one, other, strict=True)]  # of the seconds of a step
    assert median(off) < 0.1  # a busy disk may hold up any single step
