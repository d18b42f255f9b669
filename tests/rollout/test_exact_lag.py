"""Exact lag: every trained token has the age that was drawn for its group; and `rollout.lag` is read as it is meant."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Recipe, Rollout
from arl.config.recipe_file import dump_recipe
from arl.errors import InputError
from arl.metrics.trajectory_files import TrajectoryFiles, group_rows
from arl.rollout.exact_lag import load_lags
from arl.rollout.filters import Filter, keep_all
from arl.run.preflight import preflight
from arl.types import Problem, SwapReport, Trajectory, TrajectoryGroup, WeightUpdate
from tests.examples import examples
from tests.fakes import NullObserver, NullTrainer
from tests.rollout.controller_world import NEVER_ENDED_BY_FAILURES, World, scheduled

STEPS = 7


def clamped(draws: Sequence[int], problems: int) -> np.ndarray:
    """(steps, P), from the draw of each group."""
    drawn = np.array(draws, np.int32).reshape(-1, problems)
    return np.minimum(drawn, np.arange(len(drawn))[:, None])


def rejecting(one_in: int) -> Filter:
    """One finished group in `one_in` is not kept; 0: all are."""
    groups = Counter[str]()

    def keep(problem: Problem, trajectories: Sequence[Trajectory]) -> bool:
        groups["finished"] += 1
        return not one_in or groups["finished"] % one_in > 0

    return keep


class RingOfVersions(NullTrainer):
    """Refuses what would not be published yet, or kept no longer: the newest `kept` are."""

    def __init__(self, step_seconds: float, version: int, kept: int) -> None:
        super().__init__(step_seconds, version)
        self.kept = kept

    def check(self, version: int) -> None:
        assert self.version - self.kept < version <= self.version

    async def weights(self, version: int) -> WeightUpdate:
        self.check(version)
        return await super().weights(version)


class Loads(NullObserver):
    """Checks at the end of each load that its weights were there until then."""

    def __init__(self, trainer: RingOfVersions) -> None:
        super().__init__()
        self.trainer = trainer

    def swapped(self, report: SwapReport) -> None:
        super().swapped(report)
        self.trainer.check(report.version)


@st.composite
def draws(draw: st.DrawFn) -> np.ndarray:
    """A constant, or a few lags of very different frequency."""
    problems = draw(st.integers(1, 5))
    pool = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    lags = st.sampled_from(pool)
    return clamped(draw(st.lists(lags, min_size=STEPS * problems, max_size=STEPS * problems)), problems)


schedules = st.fixed_dictionaries(
    {
        "lags": draws(),
        "one_in": st.integers(2, 40),
        "factor": st.sampled_from([1.0, 10.0, 1000.0]),
        "fail_one_in": st.sampled_from([0, 3, 7, 20]),
        "reject_one_in": st.sampled_from([0, 2, 5]),
        "replicas": st.integers(1, 3),
        "step_seconds": st.sampled_from([0.0, 0.3, 4.0, 60.0]),
        "swap_seconds": st.sampled_from([0.0, 0.7, 11.0]),
    }
)


def world(s: dict[str, Any], keep: Filter = keep_all, **options: Any) -> World:
    lags = s["lags"]
    rollout = Rollout(problems_per_step=lags.shape[1], group_size=2, lag=0, **NEVER_ENDED_BY_FAILURES)
    made = scheduled(s, rollout, len(lags), keep=keep, lags=lags, **options)
    made.trainer = RingOfVersions(s["step_seconds"], made.first, int(lags.max()) + 2)
    made.observer = Loads(made.trainer)
    return made


def trained_lags(ran: World) -> list[list[int]]:
    """Of each trained group by step, sorted; every token of a group is of the version that admitted it."""
    for batch in ran.trainer.batches:
        for group in batch.groups:
            versions = np.concatenate([t.policy_versions[t.loss_mask] for t in group.trajectories])
            assert set(versions.tolist()) == {group.dispatch_version}
    return [sorted(batch.version - g.dispatch_version for g in batch.groups) for batch in ran.trainer.batches]


@given(schedules)
@examples(2)
def test_on_any_schedule_every_token_is_exactly_as_old_as_was_drawn(s: dict[str, Any]) -> None:
    ran = world(s, rejecting(s["reject_one_in"])).run()
    assert trained_lags(ran) == np.sort(s["lags"], axis=1).tolist()
    ran.check_accounts()
    assert ran.engine.loaded_version == STEPS


@given(schedules, st.integers(1, STEPS - 1))
@examples(1)
def test_a_run_that_is_cut_and_resumed_anywhere_keeps_every_lag(s: dict[str, Any], cut: int) -> None:
    first = world(s, rejecting(s["reject_one_in"]), until=cut).run()
    state = first.controller.state()
    second = world(s, rejecting(s["reject_one_in"]), restored=state).run()
    assert trained_lags(first) + trained_lags(second) == np.sort(s["lags"], axis=1).tolist()
    second.check_accounts(first)


P = 4


def recipe(lag: object = None, **fields: object) -> Recipe:
    values = {
        "model": {"tiny": {"hidden_size": 32, "heads": 2}},
        "data": {"task": "running_checksum", "options": {"size": 100}},
        "rollout": {"problems_per_step": P, "group_size": 2, "lag": lag, "max_new_tokens": 48},
        "train": {"steps": STEPS, "minibatches": 2},
        "eval": {"problems": 0},
    }
    return Recipe.model_validate(values | fields)


def lags_of(recipe: Recipe) -> np.ndarray:
    lags = load_lags(recipe)
    assert lags is not None
    assert lags.shape == (recipe.train.steps, recipe.rollout.problems_per_step)
    assert lags.dtype == np.int32
    return lags


def write(tmp_path: Path, text: str) -> str:
    """Write a file of this text, and return its name."""
    (tmp_path / "lags.yaml").write_text(text)
    return str(tmp_path / "lags.yaml")


def trajectory(versions: list[int], loss: list[bool]) -> Trajectory:
    zeros = np.zeros(len(versions), np.float32)
    ids = np.array(versions, np.int32)
    return Trajectory(ids, zeros, ids, np.array(loss), 1, reward=0.0, unshaped_reward=0.0, truncated=False)


def group(number: int, step: int, lag: int) -> TrajectoryGroup:
    """Its second trajectory is `lag` old; what is older still has no loss."""
    first = trajectory([-1, step, step], [False, True, True])
    second = trajectory([-1, 0, step - lag, step], [False, False, True, True])
    return TrajectoryGroup(number, Problem("p"), (first, second), 0, 0.0, 0, 0.0)


def test_a_distribution_is_drawn_by_seed_and_group(tmp_path: Path) -> None:
    text = "{0: 0.5, 1: 0.3, 4: 0.2, 9: 0}"
    train = {"steps": 500, "minibatches": 2}
    lags = lags_of(recipe({"dist": write(tmp_path, text)}, train=train))
    shares = [np.mean(lags[4:] == lag) for lag in (0, 1, 4)]
    assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.05)
    assert set(np.unique(lags)) == {0, 1, 2, 3, 4}  # 2 and 3: where 4 is cut
    assert np.array_equal(lags[:STEPS], lags_of(recipe({"dist": write(tmp_path, "{0: 0.5, 1: 0.3, 4: 0.2}")})))
    assert not np.array_equal(lags, lags_of(recipe({"dist": write(tmp_path, text)}, train=train, seed=1)))


def test_a_trace_has_the_age_of_the_oldest_loss_token_of_each_group_and_is_of_the_same_recipe(tmp_path: Path) -> None:
    """Group i of step v has lag min(v, i), recorded in falling order; lost groups do not count."""
    files = TrajectoryFiles(tmp_path / "trajectories", 0)
    for step in range(STEPS + 1):
        for i in reversed(range(P)):
            files.write(group_rows(group(100 * step + i, step, min(step, i)), "trained", step))
            files.write(group_rows(group(100 * step + i + 50, step, min(step, 9)), "rejected", None))
        if step == 3:
            files.flush()
    files.close()
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe()))
    (tmp_path / "summary.json").write_text("{}")
    rows = [[min(step, i) for i in reversed(range(P))] for step in range(STEPS)]
    assert lags_of(recipe({"trace": str(tmp_path)})).tolist() == rows
    with pytest.raises(InputError, match=r"is of another recipe: model.tiny.hidden_size is 32 there and 64 here; make"):
        preflight(recipe({"trace": str(tmp_path)}, model={"tiny": {"hidden_size": 64, "heads": 2}}))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("0: 1\n1.5: 1", "lags.yaml: 1.5: Input should be a valid integer"),
        ("{0: -1}", "lags.yaml: 0: Input should be greater than or equal to 0, and it is -1"),
        ("{0: 1, 7: 0.1}", "with train.steps 7 a lag of 7 would always be cut to the number of its step"),
    ],
)
def test_a_bad_distribution_is_refused_by_the_rule_it_breaks(tmp_path: Path, text: str, rule: str) -> None:
    with pytest.raises(InputError, match=f"^rollout.lag.dist .*{rule}"):
        preflight(recipe({"dist": write(tmp_path, text)}))
