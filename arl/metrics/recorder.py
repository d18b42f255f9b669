"""The run's memory: told of every event by the controller, it computes metrics and hands them to every sink.

events ─► record of the step ─► metrics.jsonl (the truth) ─► console, trackers
                             ├► trajectories/*.parquet
                             └► trace.json
                               cut ─► RecorderState ─► the same files go on in a run that resumes
"""

import contextlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from arl.clock import now
from arl.metrics.batch import Ages, rollout_metrics
from arl.metrics.names import Record, number
from arl.metrics.recorder_state import RecorderState
from arl.metrics.run_files import (
    METRICS_FILE,
    TRACE_FILE,
    TRAINED,
    TRAJECTORIES,
    MetricsFile,
    TraceFile,
    TrajectoryFiles,
)
from arl.metrics.trackers import Tracker
from arl.types import Accuracy, Batch, StepResult, SwapReport, TrajectoryGroup


class Display(Protocol):
    """The person watching."""

    def step(self, record: Record) -> None: ...

    def note(self, text: str) -> None: ...


class Recorder:
    """Implements the controller's Observer.

    Args:
        busy_seconds, tokens_generated, restarts: of this process; read at every step.
        admitted: groups, since the start of the run; read at every step.
        restored: where the files of `directory` are cut back to, and go on from.
    """

    def __init__(
        self,
        directory: Path,
        trajectories: bool,
        trackers: list[Tracker],
        display: Display,
        busy_seconds: Callable[[], float],
        tokens_generated: Callable[[], int],
        restarts: Callable[[], int],
        admitted: Callable[[], int],
        restored: RecorderState | None = None,
    ) -> None:
        at = restored or RecorderState(now(), now())
        self._start, self._last_step = at.start, at.last_step
        self._busy_seconds, self._tokens_generated, self._admitted = busy_seconds, tokens_generated, admitted
        self._last_busy, self._last_tokens = busy_seconds() - at.busy_seconds, tokens_generated() - at.tokens_generated
        self._last_swap, self._lost = at.last_swap, Counter(at.lost)
        self._restarts, self._restarts_before = restarts, at.restarts
        self.selection = at.selection
        self.token_ages = Counter(at.token_ages)  # age -> trained tokens of that age
        self.num_spanning = at.num_spanning  # trained trajectories sampled by two or more versions
        self._metrics = MetricsFile(directory / METRICS_FILE, at.metrics_bytes)
        self._trace = TraceFile(directory / TRACE_FILE, at.trace_bytes)
        self._trajectories = TrajectoryFiles(directory / TRAJECTORIES, at.num_files) if trajectories else None
        self._trackers, self._display = trackers, display
        self.records = self._metrics.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as sinks:  # one that fails to close does not keep the others open
            for tracker in self._trackers:
                sinks.callback(tracker.close)
            if self._trajectories:
                sinks.callback(self._trajectories.flush)
            sinks.callback(self._trace.close)
            sinks.callback(self._metrics.close)

    @property
    def seconds(self) -> float:
        """Since training began."""
        return now() - self._start

    def cut(self) -> RecorderState:
        """This instant, with everything up to here in the files."""
        if self._trajectories:
            self._trajectories.flush()
        return RecorderState(
            start=self._start,
            last_step=self._last_step,
            busy_seconds=self._busy_seconds() - self._last_busy,
            tokens_generated=self._tokens_generated() - self._last_tokens,
            metrics_bytes=self._metrics.cut(),
            trace_bytes=self._trace.cut(),
            num_files=self._trajectories.num_files if self._trajectories else 0,
            last_swap=self._last_swap,
            lost=dict(self._lost),
            selection=self.selection,
            token_ages=dict(self.token_ages),
            num_spanning=self.num_spanning,
            restarts=self._restarts_before + self._restarts(),
        )

    # ---- events

    def group_finished(self, group: TrajectoryGroup) -> None:
        self.selection = self.selection.plus(group, "generated")
        arrived = self.selection.generated.groups - self.selection.dropped.groups
        self._trace.count("groups arrived", now(), groups=arrived)

    def group_lost(self, group: TrajectoryGroup, fate: str, cause: BaseException | None) -> None:
        self._lost[fate] += 1
        self.selection = self.selection.plus(group, "generated", "dropped")
        if self._trajectories:
            self._trajectories.write(group, fate, None)
        if fate != "rejected":
            why = f": {type(cause).__name__}: {cause}" if cause else ""
            self._display.note(f"problem {group.problem.id}: group {fate}{why}")

    def swapped(self, report: SwapReport) -> None:
        self._last_swap = report
        self._trace.span("engines", f"swap to {report.version}", now() - report.seconds, now())

    def step_finished(self, batch: Batch, result: StepResult, waited: float) -> None:
        begun = self._last_step
        self._trace.span("trainer", "wait for batch", begun, begun + waited)
        self._trace.span("trainer", f"step {batch.version}", begun + waited, now(), version=result.version)
        ages = Ages(batch)
        self.token_ages.update({age: count for age, count in enumerate(ages.tokens) if count})
        self.num_spanning += ages.num_spanning
        for group in batch.groups:
            self.selection = self.selection.plus(group, "trained")
        record: Record = {"step": result.version, "policy_version": result.version, "time_s": self.seconds}
        record |= rollout_metrics(batch) | ages.metrics() | result.metrics | self._sync_metrics()
        record |= self.selection.metrics(self._admitted()) | self._rates(number(record, "tokens/trained"), waited)
        self._write(record)
        if self._trajectories:
            for group in batch.groups:
                self._trajectories.write(group, TRAINED, batch.version)
            self._trajectories.end_step()
        self._display.step(record)

    def evaluated(self, accuracy: Accuracy) -> None:
        version = accuracy.version
        record: Record = {"step": version, "policy_version": version, "time_s": self.seconds}
        record |= {"eval/held_out/accuracy": accuracy.mean_reward, "eval/held_out/problems": accuracy.problems}
        self._write(record)

    # ---- metrics

    def _write(self, record: Record) -> None:
        self.records.append(record)
        self._metrics.write(record)
        for tracker in self._trackers:
            tracker.log(record)

    def _sync_metrics(self) -> Record:
        return {
            "sync/seconds": self._last_swap.seconds,
            "sync/pause_seconds": self._last_swap.pause_seconds,
            "groups/failed": self._lost["failed"],
            "groups/dropped": self._lost.total() - self._lost["failed"],
            "engines/restarts": self._restarts_before + self._restarts(),
        }

    def _rates(self, trained: float, waited: float) -> Record:
        elapsed = max(now() - self._last_step, 1e-9)
        busy, generated = self._busy_seconds(), self._tokens_generated()
        rates: Record = {
            "tokens/generated": generated - self._last_tokens,
            "throughput/trained_tokens_per_s": trained / elapsed,
            "idle/trainer": min(waited / elapsed, 1.0),
            "idle/engine": max(1.0 - (busy - self._last_busy) / elapsed, 0.0),
        }
        self._last_step, self._last_busy, self._last_tokens = now(), busy, generated
        return rates
