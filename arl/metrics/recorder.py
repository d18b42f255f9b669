"""Record a run: receive every event from the controller, compute metrics, and write them to files and trackers.

events ─► record of the step ─► metrics.jsonl (the truth) ─► console, trackers
      ├─► trajectories/*.parquet
      └─► trace.json
snapshot ─► RecorderState ─► a resumed run appends to the same files
"""

import contextlib
import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from msgspec import structs

from arl.clock import now
from arl.data.text_codec import TextCodec
from arl.metrics.batch import EQUAL_STEPS, Ages, EndedGroups, EqualRewards, batch_metrics
from arl.metrics.episode_table import group_rows, split_tokens
from arl.metrics.names import Record, number
from arl.metrics.recorder_state import Meters, RecorderState, RunRecords
from arl.metrics.run_files import METRICS_FILE, TRAJECTORIES, MetricsFile
from arl.metrics.sampled_episode import choose_samples
from arl.metrics.spans import current_sink
from arl.metrics.trace_files import Trace
from arl.metrics.trackers import TrackerThread
from arl.metrics.trajectory_files import TrajectoryFiles
from arl.types import REJECTED, TRAINED, Accuracy, Batch, StepResult, StepWaits, SwapReport, TrajectoryGroup

NUM_SAMPLES = 4  # episodes of a step that trackers are shown


class Display(Protocol):
    """Show the run to a person."""

    def step(self, record: Record) -> None:
        """Show a finished training step."""

    def lost(self, text: str) -> None:
        """Show one line about a group that is not trained."""

    def note(self, text: str) -> None:
        """Show one line about anything else. Threads may call it too."""


class Recorder:
    """Implement the controller's Observer. Events may come after `watch`.

    Args:
        directory: of the run.
        trajectories: whether to write them.
        trackers: that `make_trackers` has made; the recorder starts and closes them.
        codec: turns tokens into text, for trajectory files and trackers.
        samples_every: steps between two of which trackers are shown episodes; 0: none.
        threaded: write trajectory files in a thread; in virtual time everything happens at once.
        restored: the place that the files of `directory` are cut back to; recording goes on from there.
    """

    def __init__(
        self,
        directory: Path,
        trajectories: bool,
        trackers: Sequence[TrackerThread],
        display: Display,
        *,
        codec: TextCodec | None = None,
        samples_every: int = 0,
        threaded: bool = False,
        restored: RecorderState | None = None,
    ) -> None:
        self._directory = directory
        self._display = display
        self._codec = codec
        self._samples_every = samples_every
        self.state = copy.deepcopy(restored) or RecorderState(start=now(), last_step=now())
        self._equal_rewards = EqualRewards()
        self._metrics = MetricsFile(directory / METRICS_FILE, self.state.metrics_bytes)
        self._trace = Trace(directory, self.state.trace_bytes)
        self._spans = current_sink()
        if self._spans is not None:
            self._spans.open(self._trace.add)
        self._trajectories: TrajectoryFiles | None = None
        if trajectories:
            self._trajectories = TrajectoryFiles(directory / TRAJECTORIES, self.state.num_files, codec, threaded)
        self.records = RunRecords(self._metrics.read())
        self._trackers = trackers
        past = tuple(self._metrics.read()) if trackers else ()
        for tracker in trackers:
            tracker.start(past)

    def watch(self, read_meters: Callable[[], Meters]) -> None:
        """Begin to count. `read_meters` is called at every step and swap."""
        self._read_meters = read_meters
        meters = read_meters()
        self._at_last_step = meters.counted_since(self.state.since)
        self._loaded_version = meters.loaded_version
        self._versions_counted_at = now()

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
        return now() - self.state.start

    def snapshot(self) -> RecorderState:
        """Begin to write everything up to this instant to the files, and return what a checkpoint keeps.

        The files hold it when `settle` has returned.
        """
        if self._trajectories:
            self._trajectories.flush()
            self.state.num_files = self._trajectories.num_files
        self._count_versions()
        meters = self._read_meters()
        state = copy.deepcopy(self.state)
        state.since = meters.counted_since(self._at_last_step)
        state.restarts += meters.restarts
        state.metrics_bytes = self._metrics.flush()
        state.trace_bytes = self._trace.flush()
        return state

    def settle(self) -> None:
        """Wait until the files hold everything up to the last `snapshot`. May be called in any thread.

        Raises:
            RunError: they cannot be written.
        """
        if self._trajectories:
            self._trajectories.settle()

    # ---- events

    def group_finished(self, group: TrajectoryGroup) -> None:
        """Count a group that waits in the buffer."""
        selection = self.state.selection
        selection.generated.add(group)
        self.state.ended.add(group)
        self._trace.count("groups arrived", now(), groups=selection.generated.groups - selection.num_lost)

    def group_lost(self, group: TrajectoryGroup, fate: str, cause: BaseException | None) -> None:
        """Count a group that is not trained. Rejected ones are not shown: a filter may reject hundreds."""
        self.state.selection.add_lost(group, fate)
        self.state.ended.add(group, fate)
        if self._trajectories:
            self._trajectories.write(group_rows(group, fate, None))
        if fate != REJECTED:
            why = f": {type(cause).__name__}: {cause}" if cause else ""
            self._display.lost(f"problem {group.problem.id}: group {fate}{why}")

    def swapped(self, report: SwapReport) -> None:
        """Note that the engines have loaded a version."""
        self.state.last_swap = report
        self.state.num_swaps += 1
        self.state.paused += report.pause_seconds
        self.state.recomputed += report.recomputed_tokens
        self._count_versions()
        self._trace.span("engines", f"swap to {report.version}", now() - report.seconds, now())

    def step_finished(self, batch: Batch, result: StepResult, waits: StepWaits) -> None:
        """Write the record of a step."""
        state = self.state
        got_batch = state.last_step + waits.total
        self._trace.span("trainer", "wait for batch", state.last_step, got_batch)
        self._trace.span("trainer", f"step {batch.version}", got_batch, now(), version=result.version)
        self._trace.flush()  # so that others read it
        ages = Ages(batch)
        for age, count in enumerate(ages.tokens):
            if count:
                state.token_ages[age] = state.token_ages.get(age, 0) + count
        state.num_spanning += ages.num_spanning
        for group in batch.groups:
            state.selection.trained.add(group)
        meters = self._read_meters()
        record: Record = {
            "step": result.version,
            "policy_version": result.version,
            "time_s": self.seconds,
            "epochs": meters.epochs,
        }
        record |= batch_metrics(batch, consumed_at=got_batch)
        record |= state.ended.metrics()
        record |= ages.metrics()
        record |= result.metrics
        record |= self._swap_metrics(result.version)
        record |= state.selection.metrics(meters.admitted, meters.open_tokens, meters.restarted_tokens)
        record |= self._rates(record, meters, waits)
        self._write(record)
        self._show_samples(batch, result)
        if self._trajectories:
            for group, tokens in zip(batch.groups, split_tokens(batch, result.tokens), strict=True):
                self._trajectories.write(group_rows(group, TRAINED, batch.version, tokens))
            self._trajectories.end_step()
        self._display.step(record)
        equal = self._equal_rewards.step(batch)
        if equal is not None:
            self._display.note(
                f"every episode of the last {EQUAL_STEPS} steps had the reward {equal:g}, so there is nothing to learn "
                f"from; `arl samples {self._directory}` shows what was answered and how it was graded"
            )

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

    def _count_versions(self) -> None:
        """Add the versions × seconds by which the engines were behind, at each event that changes a version."""
        at = now()
        behind = self.state.trained_version - self._loaded_version
        self.state.version_seconds += behind * (at - self._versions_counted_at)
        self._loaded_version = self._read_meters().loaded_version
        self._versions_counted_at = at

    def _swap_metrics(self, version: int) -> Record:
        """Compute sync/… of the swaps since the last step, and count anew."""
        state = self.state
        self._count_versions()
        swap = state.last_swap
        record: Record = {"sync/seconds": swap.seconds, "sync/pause_seconds": swap.pause_seconds}
        for part, seconds in structs.asdict(swap.parts).items():
            record[f"sync/{part}_seconds"] = seconds
        record["sync/swaps"] = state.num_swaps
        record["sync/paused_s"] = state.paused
        record["sync/recomputed_tokens"] = state.recomputed
        record["sync/versions_behind"] = state.version_seconds / max(now() - state.last_step, 1e-9)
        state.num_swaps = 0
        state.paused = 0.0
        state.recomputed = 0
        state.version_seconds = 0.0
        state.trained_version = version
        return record

    def _rates(self, record: Record, meters: Meters, waits: StepWaits) -> Record:
        """Compute what happened between two steps: tokens, idle time, waits; and count anew."""
        state = self.state
        since = meters.counted_since(self._at_last_step)
        seconds = now() - state.last_step
        elapsed = max(seconds, 1e-9)
        trained = int(number(record, "tokens/trained"))
        generated = int(number(record, "audit/tokens_generated"))
        rates: Record = {
            "tokens/generated": generated - state.tokens_generated,
            "tokens/generated_total": generated,
            "tokens/trained_total": state.tokens_trained + trained,
            "throughput/trained_tokens_per_s": trained / elapsed,
            "time/step_s": seconds,
            "wait/groups_s": waits.groups,
            "wait/bound_s": waits.bound,
            "wait/device_s": waits.device,
            "wait/gate_s": since.gate_seconds,
            "idle/trainer": min(waits.total / elapsed, 1.0),
            "idle/engine": max(1.0 - since.busy_seconds / elapsed, 0.0),
            "engines/restarts": state.restarts + meters.restarts,
        }
        if since.graded_groups:
            rates["reward/wait_seconds"] = since.reward_wait_seconds / since.graded_groups
        state.last_step = now()
        state.tokens_generated = generated
        state.tokens_trained += trained
        state.ended = EndedGroups()
        self._at_last_step = meters
        return rates

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
