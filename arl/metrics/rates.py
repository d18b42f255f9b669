"""Measure what happens from one step to the next: tokens, idle time, waits for rewards.

Meters, which only grow ─► Rates: differences between two steps ─► metrics
                             └► RatesState, from which a resumed run goes on
"""

from collections.abc import Callable

from msgspec import Struct, structs

from arl.clock import now
from arl.metrics.names import Record
from arl.types import StepWaits


class Meters(Struct, frozen=True):
    """Hold what was counted in this process since it began."""

    busy_seconds: float  # of the engines
    restarts: int  # of engines
    reward_wait_seconds: float = 0.0  # of groups, from the end of their last episode to their grades
    graded_groups: int = 0  # of which these are the sum
    gate_seconds: float = 0.0  # in which admission was held back and no request was open


class RatesState(Struct, frozen=True):
    """Keep what is counted since the last step, and since the start of the run."""

    last_step: float  # clock seconds: its end
    since: Meters = Meters(0.0, 0)  # the last step
    restarts: int = 0  # since the start, like the next two
    total_generated: int = 0  # tokens, up to the last step
    total_trained: int = 0  # likewise


class Rates:
    """Compute the metrics of the time between two steps.

    Args:
        read: the meters of this process.
        at: where the run goes on.
    """

    def __init__(self, read: Callable[[], Meters], at: RatesState) -> None:
        self._read = read
        self._restarts = at.restarts  # before this process
        self._at_last_step = _minus(read(), at.since)
        self._total_generated = at.total_generated
        self._total_trained = at.total_trained
        self.last_step = at.last_step

    def state(self) -> RatesState:
        """Return what a checkpoint keeps."""
        meters = self._read()
        return RatesState(
            last_step=self.last_step,
            since=_minus(meters, self._at_last_step),
            restarts=self._restarts + meters.restarts,
            total_generated=self._total_generated,
            total_trained=self._total_trained,
        )

    def end_step(self, trained: int, generated: int, waits: StepWaits) -> Record:
        """Compute the metrics since the last step, and count from this step on.

        Args:
            trained: loss tokens of the step.
            generated: sampled tokens of ended episodes, since the start of the run.
            waits: of the trainer, before the step.
        """
        meters = self._read()
        since = _minus(meters, self._at_last_step)
        at = now()
        elapsed = max(at - self.last_step, 1e-9)
        generated_before = self._total_generated
        self._total_generated = generated
        self._total_trained += trained
        record: Record = {
            "tokens/generated": generated - generated_before,
            "tokens/generated_total": self._total_generated,
            "tokens/trained_total": self._total_trained,
            "throughput/trained_tokens_per_s": trained / elapsed,
            "time/step_s": at - self.last_step,
            "wait/groups_s": waits.groups,
            "wait/bound_s": waits.bound,
            "wait/device_s": waits.device,
            "wait/gate_s": since.gate_seconds,
            "idle/trainer": min(waits.total / elapsed, 1.0),
            "idle/engine": max(1.0 - since.busy_seconds / elapsed, 0.0),
            "engines/restarts": self._restarts + meters.restarts,
        }
        if since.graded_groups:
            record["reward/wait_seconds"] = since.reward_wait_seconds / since.graded_groups
        self.last_step = at
        self._at_last_step = meters
        return record


def _minus(one: Meters, other: Meters) -> Meters:
    return Meters(*(a - b for a, b in zip(structs.astuple(one), structs.astuple(other), strict=True)))
