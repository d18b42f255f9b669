"""A recording played to the real controller: the recorded batches under the recorded rules, the bound under any."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from arl import clock
from arl.config.recipe import Rollout
from arl.rollout.controller import Controller
from arl.rollout.filters import keep_all
from arl.rollout.segment import Segment
from arl.run.replay.recorded import (
    TOO_NEW,
    TOO_OLD,
    PacedTrainer,
    RecordedEngine,
    RecordedGate,
    RecordedGroups,
    RecordedOrder,
    RecordedSchedule,
)
from arl.run.replay.recording import RecordedGroup, Recording, lost_at_once
from arl.types import FAILED, FAILED_REQUEUED, LATE, LATE_REQUEUED, Batch, SwapReport
from tests.examples import examples
from tests.fakes import NullCheckpoints, NullCodec, NullLease, NullObserver, NullTrainer
from tests.rollout.controller_world import PATIENT, World, rules, scheduled, schedules

STEPS = 6


class Witness(NullObserver):
    """Remembers when the engines had loaded what."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: dict[int, float] = {}

    def swapped(self, report: SwapReport) -> None:
        self.loaded[report.version] = clock.now()


def recorded(s: dict[str, Any]) -> tuple[World, Recording]:
    """A run on schedule `s`, and what a run directory would hold of it."""
    world = scheduled(s, rules(s), STEPS)
    world.observer = witness = Witness()
    world.run()
    groups = [RecordedGroup(group, fate, None) for group, fate in witness.lost]
    for i, group in enumerate(group for batch in world.trainer.batches for group in batch.groups):
        groups.append(RecordedGroup(group, "trained", i))
    by_id = {g.group.group_id: g for g in groups if g.group.trajectories}
    whole = tuple(by_id.get(k) or lost_at_once(k) for k in range(max(by_id) + 1))
    steps = (s["step_seconds"],) * STEPS
    return world, Recording(whole, 0.0, steps, witness.loaded, 0.0, s["swap_seconds"], None)


class Replayed:
    """A recording that has been played back."""

    def __init__(self, recording: Recording, rollout: Rollout, as_recorded: bool, step_seconds: float) -> None:
        self.recording, self.rollout, self.as_recorded = recording, rollout, as_recorded
        self.trainer, self.observer = NullTrainer(step_seconds), NullObserver()
        clock.run(self._main, virtual=True)

    async def _main(self) -> None:
        recording, rollout = self.recording, self.rollout
        patience = recording.seconds + recording.load_seconds + 1.0
        trainer = PacedTrainer(self.trainer)
        engine = RecordedEngine(recording.loaded, recording.load_seconds)
        p = rollout.problems_per_step
        schedule = RecordedSchedule(recording.groups, recording.loaded, p)
        gate = RecordedGate(recording.groups, p, rollout.max_age)
        bound = None if self.as_recorded else rollout.max_age
        alike = {"late": "wait", "max_groups": None} if self.as_recorded else {"max_requeues": 0}
        groups = RecordedGroups(recording.groups, engine, NullCodec(), trainer, patience, bound)
        self.controller = Controller(
            Segment(
                rollout=rollout.model_copy(update=alike),
                deadlines=PATIENT,
                steps=STEPS,
                until=STEPS,
                engine=engine,
                trainer=trainer,
                admission=schedule if self.as_recorded else gate,
                problems=RecordedOrder(recording.groups),
                groups=groups,
                gate_meter=groups.gate_meter,
                keep=keep_all,
                lease=NullLease(),
                observer=self.observer,
                checkpoints=NullCheckpoints(0, STEPS),
            )
        )
        await self.controller.run()

    def ages(self) -> list[int]:
        """Of every trained token."""
        return [
            batch.version - int(version)
            for batch in self.trainer.batches
            for group in batch.groups
            for t in group.trajectories
            for version in t.policy_versions[t.loss_mask]
        ]


def ids(batches: Sequence[Batch]) -> list[list[int]]:
    return [[group.group_id for group in batch.groups] for batch in batches]


@given(schedules, st.sampled_from([None, 0.0, 5.0]))
@examples(3)
def test_on_any_schedule_the_recorded_rules_give_the_recorded_batches(s: dict[str, Any], other: float | None) -> None:
    """Even where steps take other times than they took, as those of a wall clock always do a little."""
    world, recording = recorded(s)
    step_seconds = s["step_seconds"] if other is None else other
    replayed = Replayed(recording, world.rollout, as_recorded=True, step_seconds=step_seconds)
    assert ids(replayed.trainer.batches) == ids(world.trainer.batches)
    assert replayed.controller.ledger.trained == world.controller.ledger.trained
    assert set(replayed.controller.ledger.lost) <= set(world.controller.ledger.lost)


@given(schedules, schedules)
@examples(3)
def test_under_any_rules_the_bound_holds_and_every_group_is_accounted_for(
    s: dict[str, Any], other: dict[str, Any]
) -> None:
    _, recording = recorded(s)
    p = s["problems"]
    rollout = rules({**other, "problems": p})
    replayed = Replayed(recording, rollout, False, other["step_seconds"])
    controller, ledger = replayed.controller, replayed.controller.ledger
    assert all(0 <= age <= rollout.max_age for age in replayed.ages())
    assert ledger.trained == controller.version * p
    in_flight = ledger.in_flight
    assert in_flight == 0 if controller.version == STEPS else 0 <= in_flight < p
    assert ledger.lost.keys() <= {TOO_OLD, TOO_NEW, FAILED, FAILED_REQUEUED, LATE_REQUEUED, LATE}
