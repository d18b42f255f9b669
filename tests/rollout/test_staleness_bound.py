"""On any schedule no trained token is older than the bound, and the trainer waits for nothing else."""

from collections import Counter
from itertools import pairwise
from typing import Any

from hypothesis import given

from arl.config.recipe import Rollout
from arl.config.rollout_section import TailBatching
from arl.data.problem_order import ProblemOrder
from arl.types import FAILED, FAILED_REQUEUED, LATE_REQUEUED, REJECTED, SET_ASIDE, Problem
from tests.examples import examples
from tests.rollout.controller_world import NEVER_ENDED_BY_FAILURES, World, heavy_tailed, rules, scheduled, schedules


@given(schedules)
@examples(10)
def test_on_any_schedule_no_trained_token_is_older_than_the_bound_and_every_group_is_accounted_for(
    s: dict[str, Any],
) -> None:
    p = s["problems"]
    rollout = rules(s)
    every = min(s["every"], rollout.versions_ahead + 1)
    world = scheduled(
        s,
        rollout,
        6,
        every=every,
        keep=lambda problem, _: not s["reject_one_in"] or int(str(problem.prompt)) % s["reject_one_in"] != 0,
        checkpoint_every=s["checkpoint_every"],
        crash_at=s["crash_at"],
    ).run()
    ledger = world.controller.ledger
    assert max(world.ages()) <= rollout.max_age
    assert max(world.trainer.versions_ahead) <= rollout.versions_ahead
    assert [len(batch.groups) for batch in world.trainer.batches] == [p] * 6
    loads = [0, *(report.version for report in world.observer.swaps if report.version < 6)]
    if s["crash_at"] is None:
        assert all(load >= earlier + every for earlier, load in pairwise(loads))
    world.check_accounts()
    assert bool(ledger.lost[FAILED] + ledger.lost[FAILED_REQUEUED]) <= bool(s["fail_one_in"])
    assert bool(ledger.lost[REJECTED]) <= bool(s["reject_one_in"])
    if rollout.late == "wait":
        assert ledger.lost.keys() <= {FAILED, FAILED_REQUEUED, REJECTED}
        trained_problems = [group.problem.id for batch in world.trainer.batches for group in batch.groups]
        if not ledger.lost:  # nothing but the order decides: the first of it, each once, through any crash
            order = ProblemOrder([Problem(str(i)) for i in range(50)], seed=0)
            assert sorted(trained_problems) == sorted(next(order).id for _ in range(6 * p))


def test_without_a_bound_a_straggler_delays_no_step_and_is_trained_however_old_it_is() -> None:
    one_straggler = heavy_tailed(one_in=20, factor=500)
    bounded = World(Rollout(problems_per_step=2, group_size=2, staleness=3), 30, one_straggler).run()
    free = World(Rollout(problems_per_step=2, group_size=2, staleness=None, max_groups=6), 30, one_straggler).run()
    assert max(bounded.ages()) <= 3 < max(free.ages())
    assert max(free.observer.waits) < max(bounded.observer.waits)


def test_with_staleness_generation_runs_while_the_trainer_trains() -> None:
    synchronous = World(Rollout(problems_per_step=4, group_size=2, staleness=0), steps=10).run()
    asynchronous = World(Rollout(problems_per_step=4, group_size=2, staleness=2), steps=10).run()
    assert asynchronous.seconds < 0.75 * synchronous.seconds
    assert max(asynchronous.ages()) >= 1


def test_late_drop_abandons_the_straggler_and_requeues_its_problem() -> None:
    straggling = heavy_tailed(one_in=12, factor=500)
    rollout = Rollout(problems_per_step=2, group_size=2, staleness=1, late="drop")
    world = World(rollout, 12, straggling).run()
    waiting = World(Rollout(problems_per_step=2, group_size=2, staleness=1), 12, straggling).run()
    assert world.controller.ledger.lost[LATE_REQUEUED] > 0
    assert world.seconds < waiting.seconds
    assert max(world.ages()) <= 1


@given(schedules)
@examples(2)
def test_with_tail_batching_every_step_is_fresh_and_what_is_set_aside_is_tried_again(s: dict[str, Any]) -> None:
    rollout = Rollout(
        problems_per_step=s["problems"],
        group_size=2,
        staleness=0,
        tail_batching=TailBatching(oversample=1.5),
        **NEVER_ENDED_BY_FAILURES,
    )
    cuts = {"checkpoint_every": s["checkpoint_every"], "crash_at": s["crash_at"]}
    world = scheduled(s, rollout, 12, **cuts).run()
    ledger = world.controller.ledger
    batches = world.trainer.batches
    assert set(world.ages()) == {0}
    assert [len(batch.groups) for batch in batches] == [s["problems"]] * 12
    world.check_accounts()
    assert world.tail is not None
    trained = Counter(group.problem.id for batch in batches for group in batch.groups)
    waiting = Counter(attempt.problem.id for attempt in world.tail.set_aside)
    if not s["fail_one_in"]:  # no problem is lost: each is trained or waits, and none twice in an epoch
        assert (trained + waiting).total() == world.controller.state().num_problems
        assert ledger.lost.keys() <= {SET_ASIDE}
