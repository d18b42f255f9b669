"""Engines load new weights as often as their pace says, in mid-generation or between episodes."""

import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Deadlines, Rollout
from arl.errors import leaves
from arl.rollout.env import Session
from arl.rollout.swap_pace import SwapPace
from arl.types import Problem
from tests.examples import examples
from tests.rollout.controller_world import World, heavy_tailed, rules, scheduled, schedules


@given(schedules, st.integers(1, 7), st.sampled_from([0.0, 3.0, 1e9]))
@examples(5)
def test_on_any_schedule_and_at_any_pace_of_swaps_the_bound_holds_and_every_step_is_trained(
    s: dict[str, Any], every: int, min_seconds: float
) -> None:
    rollout = rules(s)
    cuts = {"checkpoint_every": s["checkpoint_every"], "crash_at": s["crash_at"]}
    world = scheduled(s, rollout, 6, pace=SwapPace(every, min_seconds), **cuts).run()
    assert max(world.ages()) <= rollout.max_age
    assert max(world.trainer.versions_ahead) <= rollout.versions_ahead
    assert [len(batch.groups) for batch in world.trainer.batches] == [s["problems"]] * 6
    assert world.engine.loaded_version == 6


@pytest.mark.parametrize("staleness", [6, None])
def test_engines_load_every_third_version_where_nothing_waits_for_one(staleness: int | None) -> None:
    rollout = Rollout(problems_per_step=2, group_size=2, staleness=staleness, max_groups=4)
    world = World(rollout, 13, step_seconds=30.0, pace=SwapPace(every=3)).run()
    assert [swap.version for swap in world.observer.swaps] == [3, 6, 9, 12, 13]


def test_engines_load_no_version_before_the_seconds_between_two_loads_have_passed() -> None:
    rollout = Rollout(problems_per_step=2, group_size=2, staleness=9, max_groups=4)
    world = World(rollout, 20, step_seconds=30.0, swap_seconds=0.0, pace=SwapPace(min_seconds=100.0)).run()
    *gaps, _ = [later - earlier for earlier, later in itertools.pairwise(world.observer.swap_times)]  # the run's end
    assert min(gaps) >= 100.0
    assert max(gaps) <= 130.0  # then at once: the next step at the latest


@pytest.mark.parametrize("min_seconds", [10.8, 12.2, 14.3])
def test_a_load_is_due_when_its_seconds_have_passed_however_sums_of_times_are_rounded(min_seconds: float) -> None:
    rollout = Rollout(problems_per_step=2, group_size=2, staleness=9, max_groups=4)
    world = World(rollout, 20, step_seconds=3.3, swap_seconds=0.1, pace=SwapPace(min_seconds=min_seconds)).run()
    *gaps, _ = [later - earlier for earlier, later in itertools.pairwise(world.observer.swap_times)]  # the run's end
    assert gaps == pytest.approx([min_seconds + 0.1] * len(gaps))


def test_a_load_is_not_put_off_once_no_group_may_start_without_it() -> None:
    rollout = Rollout(problems_per_step=2, group_size=2, staleness=1)
    slow_trainer = World(rollout, 8, step_seconds=60.0, pace=SwapPace(min_seconds=1e6)).run()
    at_once = World(rollout, 8, step_seconds=60.0).run()
    assert slow_trainer.seconds == at_once.seconds


@given(schedules)
@examples(3)
def test_without_interruptions_no_trajectory_spans_versions_on_any_schedule(s: dict[str, Any]) -> None:
    async def two_turns(problem: Problem, session: Session) -> None:
        for _ in range(2):
            await session.generate(limit=4)
            session.extend("!")

    world = scheduled(s, rules(s), 6, interrupt=False, checkpoint_every=s["checkpoint_every"], crash_at=s["crash_at"])
    world.env = two_turns
    world.run()
    assert max(world.ages()) <= world.rollout.max_age
    for batch in world.trainer.batches:
        for group in batch.groups:
            for t in group.trajectories:
                assert len(set(t.policy_versions[t.loss_mask].tolist())) == 1


def test_a_drain_past_its_deadline_names_what_it_waits_for() -> None:
    rollout = Rollout(problems_per_step=1, group_size=2, staleness=3)
    straggler = heavy_tailed(one_in=3, factor=3000)
    hurried = Deadlines(step=100.0, swap=5.0)
    with pytest.raises(ExceptionGroup) as caught:
        World(rollout, 9, straggler, step_seconds=1.0, deadlines=hurried, interrupt=False).run()
    (cause,) = leaves(caught.value)
    assert re.search(r"publisher waits \d+\.\d s for \d episodes to end before weights are loaded", str(cause))
