"""Stragglers are set aside, and trained together in a later round."""

from collections import Counter
from typing import Any

from hypothesis import given

from arl.config.recipe import Rollout
from arl.config.rollout_section import TailBatching
from arl.types import SET_ASIDE
from tests.examples import examples
from tests.rollout.controller_world import NEVER_ENDED_BY_FAILURES, World, heavy_tailed, scheduled, schedules


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
    assert ledger.admitted == ledger.trained + ledger.lost.total()
    assert world.tail is not None
    trained = Counter(group.problem.id for batch in batches for group in batch.groups)
    waiting = Counter(attempt.problem.id for attempt in world.tail.set_aside)
    if not s["fail_one_in"]:  # no problem is lost: each is trained or waits, and none twice in an epoch
        assert (trained + waiting).total() == world.controller.state().num_problems
        assert ledger.lost.keys() <= {SET_ASIDE}


def test_tail_batching_trains_on_stragglers_together_and_waits_for_them_seldom() -> None:
    straggling = heavy_tailed(one_in=20, factor=100)
    plain = Rollout(problems_per_step=4, group_size=2, staleness=0)
    batched = Rollout(problems_per_step=4, group_size=2, staleness=0, tail_batching=TailBatching(oversample=1.5))
    waiting, tail = World(plain, 40, straggling).run(), World(batched, 40, straggling).run()
    assert tail.seconds < 0.8 * waiting.seconds
    assert tail.controller.ledger.lost[SET_ASIDE] > 0
    longest = [max(len(t.token_ids) for g in b.groups for t in g.trajectories) for b in tail.trainer.batches]
    assert max(longest) > 100  # and they are trained in the end
