"""The audit finds a selection bias where there is one, none where there is none, and loses no group."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Rollout
from arl.metrics.audit import Selection
from arl.metrics.names import Record, number
from arl.rollout.env import Session
from arl.types import Batch, Problem, StepResult, StepWaits, TrajectoryGroup
from tests.fakes import NullObserver
from tests.rollout.controller_world import World, failing, rules, scheduled, schedules
from tests.rollout.test_exact_lag import rejecting


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


def stragglers(seed: int) -> int:
    return 300 if seed % 8 == 0 else 1 + seed % 7


DROPPING = Rollout(problems_per_step=4, group_size=2, staleness=1, late="drop", max_requeues=0)


def test_dropping_late_groups_is_found_to_select_short_ones() -> None:
    selection = Selection()
    world = World(DROPPING, 40, length_of=stragglers, step_seconds=50.0)
    world.observer = books = Books(selection, Counter())
    books.world = world
    books.is_complete = False
    ledger = world.run().controller.ledger
    (warning,) = selection.warnings()
    assert warning.startswith("mean length differs: trained ")
    assert selection.dropped.length.mean > 2 * selection.trained.length.mean
    assert selection.trained.length.mean < selection.generated.length.mean
    assert (selection.trained.groups, selection.dropped.groups) == (ledger.trained, ledger.lost.total())
    assert selection.dropped.reward.count == 0  # never scored


@given(schedules, st.integers(1, 5), st.booleans())
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
