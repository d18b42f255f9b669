"""Record a run: receive every event from the controller, compute metrics, and write them to files and trackers.

events ─► record of the step ─► metrics.jsonl (the truth) ─► console, trackers
      ├─► trajectories/*.parquet
      └─► trace.json
cut ─► RecorderState ─► a resumed run appends to the same files
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from msgspec import structs

from arl.clock import now
from arl.data.text_codec import TextCodec
from arl.metrics.base import TrackerMaker
from arl.metrics.batch import Ages, group_times, rollout_metrics
from arl.metrics.ended_groups import EndedGroups
from arl.metrics.episode_table import group_rows, split_tokens
from arl.metrics.equal_rewards import EqualRewards
from arl.metrics.names import Record, number
from arl.metrics.rates import Meters, Rates, RatesState
from arl.metrics.recorder_state import RecorderState
from arl.metrics.run_files import METRICS_FILE, TRAJECTORIES, MetricsFile
from arl.metrics.run_records import RunRecords
from arl.metrics.sampled_episode import choose_samples
from arl.metrics.spans import current_sink
from arl.metrics.trace_files import Trace
from arl.metrics.tracker_thread import TrackerThread
from arl.metrics.trajectory_files import TrajectoryFiles
from arl.metrics.versions_behind import VersionsBehind
from arl.types import REJECTED, TRAINED, Accuracy, Batch, StepResult, StepWaits, SwapReport, TrajectoryGroup


class Display(Protocol):
    """Show the run to a person."""

    def step(self, record: Record) -> None:
        """Show a finished training step."""

    def lost(self, text: str) -> None:
        """Show one line about a group that is not trained."""

    def note(self, text: str) -> None:
        """Show one line about anything else. Threads may call it too."""


NUM_SAMPLES = 4  # episodes of a step that trackers are shown


class Recorder:
    """Implement the controller's Observer.

    Args:
        directory: of the run.
        trajectories: whether to write them.
        trackers: see arl.metrics.base; each one runs in a thread of its own.
        meters: of this process; read at every step.
        loaded_version: of the engines; read at every step and swap.
        admitted: groups, since the start of the run; read at every step.
        open_tokens: sampled by the ended episodes of groups that run; read at every step.
        restarted_tokens: of ended episodes that a resumed run began anew; read at every step.
        epochs: over the training problems, since the start of the run; read at every step.
        codec: turns tokens into text, for trajectory files and trackers.
        samples_every: steps between two of which trackers are shown episodes; 0: none.
        threaded: write trajectory files in a thread; in virtual time everything happens at once.
        restored: the place that the files of `directory` are cut back to; recording goes on from there.
    """

    def __init__(
        self,
        directory: Path,
        trajectories: bool,
        trackers: Sequence[TrackerMaker],
        display: Display,
        *,
        meters: Callable[[], Meters],
        loaded_version: Callable[[], int],
        admitted: Callable[[], int],
        open_tokens: Callable[[], int],
        restarted_tokens: Callable[[], int],
        epochs: Callable[[], float],
        codec: TextCodec | None = None,
        samples_every: int = 0,
        threaded: bool = False,
        restored: RecorderState | None = None,
    ) -> None:
        at = restored or RecorderState(now(), RatesState(now()))
        self._start = at.start
        self._rates = Rates(meters, at.rates)
        self._admitted = admitted
        self._open_tokens = open_tokens
        self._restarted_tokens = restarted_tokens
        self._epochs = epochs
        self._codec = codec
        self._samples_every = samples_every
        self._equal_rewards = EqualRewards(str(directory))
        self._last_swap = at.last_swap
        self._num_swaps = at.num_swaps  # since the last step, like the next three
        self._paused = at.paused  # seconds
        self._recomputed = at.recomputed  # tokens
        self._behind = VersionsBehind(loaded_version, at.behind)
        self._ended = at.ended
        self.selection = at.selection
        self.token_ages = Counter(at.token_ages)  # age -> trained tokens of that age
        self.num_spanning = at.num_spanning  # trained trajectories sampled by two or more versions
        self._metrics = MetricsFile(directory / METRICS_FILE, at.metrics_bytes)
        self._trace = Trace(directory, at.trace_bytes)
        self._spans = current_sink()
        if self._spans is not None:
            self._spans.open(self._trace.add)
        files = TrajectoryFiles(directory / TRAJECTORIES, at.num_files, codec, threaded) if trajectories else None
        self._trajectories = files
        self._display = display
        self.records = RunRecords(self._metrics.read())
        past = tuple(self._metrics.read()) if trackers else ()
        self._trackers = [TrackerThread(maker, past, display.note) for maker in trackers]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._spans is not None:
            self._spans.close()
        with contextlib.ExitStack() as sinks:  # one that fails to close does not keep the others open
            for tracker in self._trackers:
                sinks.callback(tracker.close)
            if self._trajectories:
                sinks.callback(self._trajectories.close)
            sinks.callback(self._trace.close)
            sinks.callback(self._metrics.close)

    @property
    def seconds(self) -> float:
        """Return the clock seconds since training began."""
        return now() - self._start

    def cut(self) -> RecorderState:
        """Begin to write everything up to this instant to the files, and return what a checkpoint keeps.

        The files hold it when `settle` has returned.
        """
        if self._trajectories:
            self._trajectories.flush()
        return RecorderState(
            start=self._start,
            rates=self._rates.state(),
            metrics_bytes=self._metrics.cut(),
            trace_bytes=self._trace.cut(),
            num_files=self._trajectories.num_files if self._trajectories else 0,
            last_swap=self._last_swap,
            num_swaps=self._num_swaps,
            paused=self._paused,
            recomputed=self._recomputed,
            behind=self._behind.state(),
            ended=self._ended,
            selection=self.selection,
            token_ages=dict(self.token_ages),
            num_spanning=self.num_spanning,
        )

    def settle(self) -> None:
        """Wait until the files hold everything up to the last `cut`. May be called in any thread.

        Raises:
            RunError: they cannot be written.
        """
        if self._trajectories:
            self._trajectories.settle()

    # ---- events

    def group_finished(self, group: TrajectoryGroup) -> None:
        """Count a group that waits in the buffer."""
        self.selection = self.selection.finished(group)
        self._ended = self._ended.plus(group)
        arrived = self.selection.generated.groups - self.selection.num_lost
        self._trace.count("groups arrived", now(), groups=arrived)

    def group_lost(self, group: TrajectoryGroup, fate: str, cause: BaseException | None) -> None:
        """Count a group that is not trained. Rejected ones are not shown: a filter may reject hundreds."""
        self.selection = self.selection.lost(group, fate)
        self._ended = self._ended.plus(group, fate)
        if self._trajectories:
            self._trajectories.write(group_rows(group, fate, None))
        if fate != REJECTED:
            why = f": {type(cause).__name__}: {cause}" if cause else ""
            self._display.lost(f"problem {group.problem.id}: group {fate}{why}")

    def swapped(self, report: SwapReport) -> None:
        """Note that the engines have loaded a version."""
        self._last_swap = report
        self._num_swaps += 1
        self._paused += report.pause_seconds
        self._recomputed += report.recomputed_tokens
        self._behind.count()
        self._trace.span("engines", f"swap to {report.version}", now() - report.seconds, now())

    def step_finished(self, batch: Batch, result: StepResult, waits: StepWaits) -> None:
        """Write the record of a step."""
        self._trace_step(batch, result, waits.total)
        ages = Ages(batch)
        for age, count in enumerate(ages.tokens):
            if count:
                self.token_ages[age] += count
        self.num_spanning += ages.num_spanning
        for group in batch.groups:
            self.selection = self.selection.trained_on(group)
        record: Record = {"step": result.version, "policy_version": result.version, "time_s": self.seconds}
        record["epochs"] = self._epochs()
        record |= rollout_metrics(batch)
        record |= group_times(batch, consumed_at=self._rates.last_step + waits.total)
        record |= self._ended.metrics()
        record |= ages.metrics()
        record |= result.metrics
        record["sync/seconds"] = self._last_swap.seconds
        record["sync/pause_seconds"] = self._last_swap.pause_seconds
        for part, seconds in structs.asdict(self._last_swap.parts).items():
            record[f"sync/{part}_seconds"] = seconds
        record["sync/swaps"] = self._num_swaps
        record["sync/paused_s"] = self._paused
        record["sync/recomputed_tokens"] = self._recomputed
        record["sync/versions_behind"] = self._behind.end_step(result.version, now() - self._rates.last_step)
        record |= self.selection.metrics(self._admitted(), self._open_tokens(), self._restarted_tokens())
        generated = int(number(record, "audit/tokens_generated"))
        record |= self._rates.end_step(sum(ages.tokens), generated, waits)
        self._num_swaps = 0
        self._paused = 0.0
        self._recomputed = 0
        self._ended = EndedGroups()
        self._write(record)
        self._show_samples(batch, result)
        if self._trajectories:
            for group, tokens in zip(batch.groups, split_tokens(batch, result.tokens), strict=True):
                self._trajectories.write(group_rows(group, TRAINED, batch.version, tokens))
            self._trajectories.end_step()
        self._display.step(record)
        if hint := self._equal_rewards.step(batch):
            self._display.note(hint)

    def evaluated(self, accuracy: Accuracy) -> None:
        """Write the record of an evaluation; it may come after those of later steps."""
        version = accuracy.version
        record: Record = {"step": version, "policy_version": version, "time_s": self.seconds}
        record[f"eval/{accuracy.suite}/accuracy"] = accuracy.mean_reward
        record[f"eval/{accuracy.suite}/problems"] = accuracy.problems
        self._write(record)

    def has_evaluated(self, accuracy: Accuracy) -> bool:
        """Return whether the record of this evaluation is in the file, as of a run that is resumed."""
        return self.records.has_evaluated(accuracy.suite, accuracy.version)

    def read_records(self) -> list[Record]:
        """Read all records of the run, which only its end needs, from the file."""
        return list(self._metrics.read())

    # ---- metrics

    def _write(self, record: Record) -> None:
        self.records.add(record)
        self._metrics.write(record)
        for tracker in self._trackers:
            tracker.log(record)

    def _show_samples(self, batch: Batch, result: StepResult) -> None:
        every = self._samples_every
        if every and result.version % every == 0 and self._trackers and self._codec is not None:
            samples = choose_samples(batch, result, NUM_SAMPLES, self._codec)
            for tracker in self._trackers:
                tracker.log_samples(result.version, samples)

    def _trace_step(self, batch: Batch, result: StepResult, waited: float) -> None:
        begun = self._rates.last_step
        got_batch = begun + waited
        self._trace.span("trainer", "wait for batch", begun, got_batch)
        self._trace.span("trainer", f"step {batch.version}", got_batch, now(), version=result.version)
        self._trace.cut()  # so that others read it
