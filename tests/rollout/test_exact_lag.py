"""Exact lag: every trained token has the age that was drawn for its group, on any schedule."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Rollout
from arl.rollout.filters import Filter, keep_all
from arl.types import Problem, SwapReport, Trajectory, WeightUpdate
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
    trained = [group.group_id for batch in ran.trainer.batches for group in batch.groups]
    ledger = ran.controller.ledger
    assert len(set(trained)) == len(trained) == ledger.trained
    assert ledger.admitted == ledger.trained + ledger.lost.total()
    assert ran.engine.loaded_version == STEPS


@given(schedules, st.integers(1, STEPS - 1))
@examples(1)
def test_a_run_that_is_cut_and_resumed_anywhere_keeps_every_lag(s: dict[str, Any], cut: int) -> None:
    first = world(s, rejecting(s["reject_one_in"]), until=cut).run()
    state = first.controller.state()
    second = world(s, rejecting(s["reject_one_in"]), restored=state).run()
    assert trained_lags(first) + trained_lags(second) == np.sort(s["lags"], axis=1).tolist()
    trained = [group.group_id for ran in (first, second) for batch in ran.trainer.batches for group in batch.groups]
    assert len(set(trained)) == len(trained)
