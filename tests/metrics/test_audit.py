"""The audit finds a selection bias where there is one, none where there is none, and loses no group."""

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Rollout
from arl.data import msgpack_arrays
from arl.metrics.audit import Moments, Selection, p_value
from arl.metrics.names import Record, number
from arl.rollout.controller_state import ControllerState
from arl.rollout.env import Session
from arl.types import REJECTED, Batch, Problem, StepResult, StepWaits, TrajectoryGroup
from tests.examples import examples
from tests.fakes import NullObserver
from tests.metrics.test_recorder import trajectory
from tests.rollout.controller_world import World, failing, heavy_tailed, rules, scheduled, schedules
from tests.rollout.test_exact_lag import rejecting


def group(length: int, reward: float = math.nan, group_id: int = 0) -> TrajectoryGroup:
    return TrajectoryGroup(group_id, Problem("a"), (trajectory([0] * length, reward),) * 2, 0, 0.0, 0, 0.0)


def selection_of(world: World) -> Selection:
    """Count the groups of a world that has ended."""
    selection = Selection()
    for done in world.observer.finished:
        selection.generated.add(done)
    for lost, fate in world.observer.lost:
        selection.add_lost(lost, fate)
    for batch in world.trainer.batches:
        for trained in batch.groups:
            selection.trained.add(trained)
    return selection


def stragglers(seed: int) -> int:
    return 300 if seed % 8 == 0 else 1 + seed % 7


DROPPING = Rollout(problems_per_step=4, group_size=2, staleness=1, late="drop", max_requeues=0)


def test_dropping_late_groups_is_found_to_select_short_ones() -> None:
    world = World(DROPPING, 40, length_of=stragglers, step_seconds=50.0).run()
    selection, ledger = selection_of(world), world.controller.ledger
    (warning,) = selection.warnings()
    assert warning.startswith("mean length differs: trained ")
    assert selection.dropped.length.mean > 2 * selection.trained.length.mean
    assert selection.trained.length.mean < selection.generated.length.mean
    assert (selection.trained.groups, selection.dropped.groups) == (ledger.trained, ledger.lost.total())
    assert selection.dropped.reward.count == 0  # never scored


def assert_adds_up(record: Record) -> None:
    """Every sampled token has exactly one fate."""
    parts = ("trained", "rejected", "failed", "dropped", "in_flight")
    sums = [number(record, f"audit/tokens_{part}") for part in parts]
    assert min(sums) >= 0
    assert number(record, "audit/tokens_generated") == sum(sums)


class Books(NullObserver):
    """Keeps the ledger of a controller, and looks at it after every step."""

    def __init__(self, selection: Selection, sampled: Counter[str]) -> None:
        super().__init__()
        self.world: World | None = None
        self.selection = selection
        self.sampled = sampled  # by the envs themselves: episode -> tokens
        self.generated: list[float] = []
        self.is_complete = True  # whether the envs count

    def group_finished(self, group: TrajectoryGroup) -> None:
        self.selection.generated.add(group)

    def group_lost(self, group: TrajectoryGroup, fate: str, cause: BaseException | None) -> None:
        self.selection.add_lost(group, fate)

    def step_finished(self, batch: Batch, result: StepResult, waits: StepWaits) -> None:
        assert self.world is not None
        for trained in batch.groups:
            self.selection.trained.add(trained)
        controller = self.world.controller
        ledger = controller.ledger
        record = self.selection.metrics(ledger.admitted, controller.open_tokens, ledger.restarted_tokens)
        assert_adds_up(record)
        self.generated.append(number(record, "audit/tokens_generated"))
        if self.is_complete and not self.selection.dropped.groups and not ledger.restarted_tokens:
            assert self.generated[-1] == self.sampled.total()


@given(schedules, st.integers(1, 5), st.booleans())
@examples(4)
def test_on_any_schedule_generated_tokens_are_the_sum_of_their_fates(
    s: dict[str, Any], cut: int, interrupt: bool
) -> None:
    """With failures, rejections and late drops, and through a checkpoint whose engines begin with its own version."""
    sampled: Counter[str] = Counter()
    fails = failing(s["fail_one_in"])

    async def counted(problem: Problem, session: Session) -> None:
        try:
            await fails(problem, session)
        finally:
            sampled[session.episode_id] = session.num_sampled

    def run(books: Books, **options: Any) -> World:
        world = scheduled(s, rules(s), 6, keep=rejecting(s["reject_one_in"]), interrupt=interrupt, **options)
        world.observer = books
        world.env = counted
        books.world = world
        return world.run()

    before = Books(Selection(), sampled)
    first = run(before, until=cut)
    state = first.controller.state()
    for running in state.running:  # their episodes were cut off, and go on
        for episode in range(2):
            sampled.pop(f"g{running.group_id}.{episode}", None)
    after = Books(before.selection, sampled)
    run(after, restored=state, serves_newest=True)
    assert before.generated + after.generated == sorted(before.generated + after.generated)


def test_what_a_resumed_run_begins_anew_is_dropped_and_no_generated_token_is_forgotten() -> None:
    """Its engines begin with the checkpoint's version, and without interruptions no episode may go on with it."""
    rollout = Rollout(problems_per_step=2, group_size=4, staleness=3)
    settings: dict[str, Any] = {
        "length_of": heavy_tailed(one_in=4, factor=60),
        "step_seconds": 1.0,
        "checkpoint_every": 1,
        "interrupt": False,
    }
    books = Books(Selection(), Counter())
    books.is_complete = False

    def run(**options: Any) -> World:
        world = World(rollout, 8, **settings, **options)
        world.observer = books
        books.world = world
        return world.run()

    _, data = run(until=2).checkpoints.states[2]
    state = msgpack_arrays.decoder(ControllerState).decode(data)
    ended = sum(running.ended_tokens for running in state.running)
    assert ended > 0
    assert state.loaded_version < state.version
    resumed = run(restored=state, serves_newest=True)
    assert resumed.controller.ledger.restarted_tokens == ended
    assert books.generated == sorted(books.generated)


def test_what_the_filter_intends_is_shown_apart_and_is_no_warning() -> None:
    """The filter keeps short groups of high reward, and rejects the others."""
    selection = Selection()
    for i in range(20):
        short = group(5 + i % 3, 1.0 + 0.01 * i)
        selection.generated.add(short)
        selection.trained.add(short)
        selection.add_lost(group(50 + i % 3, 0.01 * i), REJECTED)
    metrics = selection.metrics(admitted=40, open_tokens=3, restarted_tokens=0)
    assert not selection.warnings()
    assert (metrics["groups/rejected"], metrics["groups/dropped"], metrics["groups/failed"]) == (20, 0, 0)
    assert metrics["audit/length_rejected"] == pytest.approx(51, abs=0.1)
    assert "audit/length_dropped" not in metrics
    ended = sum(group(5 + i % 3).trajectories[0].num_sampled for i in range(20))
    assert metrics["audit/tokens_in_flight"] == 3
    assert metrics["audit/tokens_trained"] == selection.trained.tokens >= ended
    assert_adds_up(metrics)


def test_the_test_errs_as_seldom_as_it_says() -> None:
    """Equal populations, skewed ones too, are called different in one comparison of a hundred."""
    draw = random.Random(0)
    alarms = 0
    for _ in range(500):
        samples = [Moments(), Moments()]
        for side, count in ((0, 100), (1, 40)):
            for _ in range(count):
                samples[side].add(draw.expovariate(1.0))
        alarms += p_value(*samples) < 0.01
    assert 1 <= alarms <= 15
