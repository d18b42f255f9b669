"""Record a run: receive every event from the controller, compute metrics, and write them to files and trackers.

events ─► record of the step ─► metrics.jsonl (the truth) ─► console, trackers
      ├─► trajectories/*.parquet
      └─► trace.json
cut ─► RecorderState ─► a resumed run appends to the same files
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from arl.clock import now
from arl.metrics.base import TrackerMaker
from arl.metrics.batch import Ages, rollout_metrics
from arl.metrics.names import Record, number
from arl.metrics.recorder_state import RecorderState
from arl.metrics.run_files import METRICS_FILE, TRACE_FILE, TRAJECTORIES, MetricsFile, TraceFile, TrajectoryFiles
from arl.metrics.tracker_thread import TrackerThread
from arl.types import REJECTED, TRAINED, Accuracy, Batch, StepResult, SwapReport, TrajectoryGroup


class Display(Protocol):
    """Show the run to a person."""

    def step(self, record: Record) -> None:
        """Show a finished training step."""

    def lost(self, text: str) -> None:
        """Show one line about a group that is not trained."""

    def note(self, text: str) -> None:
        """Show one line about anything else. Threads may call it too."""


class Recorder:
    """Implement the controller's Observer.

    Args:
        directory: of the run.
        trajectories: whether to write them.
        trackers: see arl.metrics.base; each one runs in a thread of its own.
        busy_seconds: of the engines in this process; read at every step.
        tokens_generated: in this process; read at every step.
        restarts: of engines, in this process; read at every step.
        admitted: groups, since the start of the run; read at every step.
        restored: the place that the files of `directory` are cut back to; recording goes on from there.
    """

    def __init__(
        self,
        directory: Path,
        trajectories: bool,
        trackers: Sequence[TrackerMaker],
        display: Display,
        *,
        busy_seconds: Callable[[], float],
        tokens_generated: Callable[[], int],
        restarts: Callable[[], int],
        admitted: Callable[[], int],
        restored: RecorderState | None = None,
    ) -> None:
        at = restored or RecorderState(now(), now())
        self._start = at.start
        self._last_step = at.last_step
        self._busy_seconds = busy_seconds
        self._tokens_generated = tokens_generated
        self._admitted = admitted
        self._last_busy = busy_seconds() - at.busy_seconds
        self._last_tokens = tokens_generated() - at.tokens_generated
        self._last_swap = at.last_swap
        self._num_scored = at.num_scored
        self._sum_of_rewards = at.sum_of_rewards
        self._restarts = restarts
        self._restarts_before = at.restarts
        self.selection = at.selection
        self.token_ages = Counter(at.token_ages)  # age -> trained tokens of that age
        self.num_spanning = at.num_spanning  # trained trajectories sampled by two or more versions
        self._metrics = MetricsFile(directory / METRICS_FILE, at.metrics_bytes)
        self._trace = TraceFile(directory / TRACE_FILE, at.trace_bytes)
        self._trajectories = TrajectoryFiles(directory / TRAJECTORIES, at.num_files) if trajectories else None
        self._display = display
        self._trackers = [TrackerThread(maker, display.note) for maker in trackers]
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
        """Return the clock seconds since training began."""
        return now() - self._start

    def cut(self) -> RecorderState:
        """Write everything up to this instant to the files, and return what a checkpoint keeps."""
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
            num_scored=self._num_scored,
            sum_of_rewards=self._sum_of_rewards,
            selection=self.selection,
            token_ages=dict(self.token_ages),
            num_spanning=self.num_spanning,
            restarts=self._restarts_before + self._restarts(),
        )

    # ---- events

    def group_finished(self, group: TrajectoryGroup) -> None:
        """Count a group that waits in the buffer."""
        self.selection = self.selection.finished(group)
        self._add_rewards(group)
        arrived = self.selection.generated.groups - self.selection.num_lost
        self._trace.count("groups arrived", now(), groups=arrived)

    def group_lost(self, group: TrajectoryGroup, fate: str, cause: BaseException | None) -> None:
        """Count a group that is not trained. Rejected ones are not shown: a filter may reject hundreds."""
        self.selection = self.selection.lost(group, fate)
        self._add_rewards(group)
        if self._trajectories:
            self._trajectories.write(group, fate, None)
        if fate != REJECTED:
            why = f": {type(cause).__name__}: {cause}" if cause else ""
            self._display.lost(f"problem {group.problem.id}: group {fate}{why}")

    def swapped(self, report: SwapReport) -> None:
        """Note that the engines have loaded a version."""
        self._last_swap = report
        self._trace.span("engines", f"swap to {report.version}", now() - report.seconds, now())

    def step_finished(self, batch: Batch, result: StepResult, waited: float) -> None:
        """Write the record of a step.

        Args:
            waited: for the batch, seconds.
        """
        self._trace_step(batch, result, waited)
        ages = Ages(batch)
        for age, count in enumerate(ages.tokens):
            if count:
                self.token_ages[age] += count
        self.num_spanning += ages.num_spanning
        for group in batch.groups:
            self.selection = self.selection.trained_on(group)
        record: Record = {"step": result.version, "policy_version": result.version, "time_s": self.seconds}
        record |= rollout_metrics(batch)
        record |= self._generated_rewards()
        record |= ages.metrics()
        record |= result.metrics
        record |= self._engine_metrics()
        record |= self.selection.metrics(self._admitted())
        record |= self._rates(number(record, "tokens/trained"), waited)
        self._write(record)
        if self._trajectories:
            for group in batch.groups:
                self._trajectories.write(group, TRAINED, batch.version)
            self._trajectories.end_step()
        self._display.step(record)

    def evaluated(self, accuracy: Accuracy) -> None:
        """Write the record of an evaluation; it may come after those of later steps."""
        version = accuracy.version
        record: Record = {"step": version, "policy_version": version, "time_s": self.seconds}
        record[f"eval/{accuracy.suite}/accuracy"] = accuracy.mean_reward
        record[f"eval/{accuracy.suite}/problems"] = accuracy.problems
        self._write(record)

    def has_evaluated(self, accuracy: Accuracy) -> bool:
        """Return whether the record of this evaluation is in the file, as of a run that is resumed."""
        name = f"eval/{accuracy.suite}/accuracy"
        return any(name in record and record["policy_version"] == accuracy.version for record in self.records)

    # ---- metrics

    def _write(self, record: Record) -> None:
        self.records.append(record)
        self._metrics.write(record)
        for tracker in self._trackers:
            tracker.log(record)

    def _trace_step(self, batch: Batch, result: StepResult, waited: float) -> None:
        begun = self._last_step
        got_batch = begun + waited
        self._trace.span("trainer", "wait for batch", begun, got_batch)
        self._trace.span("trainer", f"step {batch.version}", got_batch, now(), version=result.version)

    def _add_rewards(self, group: TrajectoryGroup) -> None:
        """Count the scored episodes of a group that has ended."""
        rewards = [t.reward for t in group.trajectories if not math.isnan(t.reward)]
        self._num_scored += len(rewards)
        self._sum_of_rewards += sum(rewards)

    def _generated_rewards(self) -> Record:
        """Compute the mean reward since the last step, before the filter."""
        if not self._num_scored:
            return {}
        mean = self._sum_of_rewards / self._num_scored
        self._num_scored = 0
        self._sum_of_rewards = 0.0
        return {"reward/generated_mean": mean}

    def _engine_metrics(self) -> Record:
        return {
            "sync/seconds": self._last_swap.seconds,
            "sync/pause_seconds": self._last_swap.pause_seconds,
            "engines/restarts": self._restarts_before + self._restarts(),
        }

    def _rates(self, trained: float, waited: float) -> Record:
        """Compute what is measured since the last step, and count from this step on."""
        at = now()
        elapsed = max(at - self._last_step, 1e-9)
        busy = self._busy_seconds()
        generated = self._tokens_generated()
        rates: Record = {
            "tokens/generated": generated - self._last_tokens,
            "throughput/trained_tokens_per_s": trained / elapsed,
            "idle/trainer": min(waited / elapsed, 1.0),
            "idle/engine": max(1.0 - (busy - self._last_busy) / elapsed, 0.0),
        }
        self._last_step = at
        self._last_busy = busy
        self._last_tokens = generated
        return rates
