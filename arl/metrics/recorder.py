"""Record a run: receive every event from the controller, compute metrics, and write them to files and trackers.

events ─► record of the step ─► metrics.jsonl (the truth) ─► console, trackers
      ├─► trajectories/*.parquet
      └─► trace.json
snapshot ─► RecorderState ─► a resumed run appends to the same files
"""

import contextlib
import copy
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from msgspec import Struct, field, structs

from arl.clock import now
from arl.data.text_codec import TextCodec
from arl.errors import UserCodeError
from arl.files import writing
from arl.metrics.alarms import Alarms
from arl.metrics.audit import Selection
from arl.metrics.batch import EndedGroups, ages_of, batch_metrics, source_metrics
from arl.metrics.names import OF_EVALUATION, Record, is_defined, number
from arl.metrics.run_files import ENV_LOG, METRICS_FILE, TRAJECTORIES, close_written, flushed_size, open_at
from arl.metrics.sampled_episode import choose_samples
from arl.metrics.spans import Trace, current_sink
from arl.metrics.trackers import TrackerThread
from arl.metrics.trajectory_files import TrajectoryFiles, group_rows, split_tokens
from arl.types import REJECTED, TRAINED, Accuracy, Batch, Count, StepResult, StepWaits, SwapReport, TrajectoryGroup

NUM_SAMPLES = 4  # episodes of a step that trackers are shown
KEPT = 100  # records in memory; one takes 14 kB
ACCURACY = "/accuracy"
EQUAL_STEPS = 3  # in a row, each with one reward for all of its episodes, after which it is said
SAME = 1e-9  # spread of equal rewards, whose mean is rounded


class Meters(Struct, frozen=True, kw_only=True):
    """Hold what the recorder reads of a run at every step."""

    # Counted in this process since it began.
    busy_seconds: float = 0.0  # of the engines
    reward_wait_seconds: float = 0.0  # of groups, from the end of their last episode to their grades
    graded_groups: int = 0  # of which these are the sum
    gate_seconds: float = 0.0  # in which admission was held back and no request was open
    restarts: int = 0  # of engines
    # Since the start of the run.
    admitted: int = 0  # groups
    restarted_tokens: int = 0  # of ended episodes that a resumed run began anew
    epochs: float = 0.0  # over the training problems
    of_order: dict[str, float] = {}  # metrics of the order of problems
    # Now.
    open_tokens: int = 0  # sampled by the ended episodes of groups that run

    def counted_since(self, other: "Meters") -> "Meters":
        """Return what this process has counted since `other` was read."""
        return Meters(
            busy_seconds=self.busy_seconds - other.busy_seconds,
            reward_wait_seconds=self.reward_wait_seconds - other.reward_wait_seconds,
            graded_groups=self.graded_groups - other.graded_groups,
            gate_seconds=self.gate_seconds - other.gate_seconds,
        )


class RecorderState(Struct, kw_only=True):
    """Count what happens in a run. With it and the run's files at one instant, recording goes on from there.

    Times are clock seconds; the clock of a resumed run goes on from the checkpoint.
    """

    start: float  # when training began
    last_step: float  # end of the last step
    # Since the last step.
    since: Meters = Meters()
    num_swaps: int = 0
    paused: float = 0.0  # seconds of these swaps
    recomputed: int = 0  # tokens, because of these swaps
    ended: EndedGroups = field(default_factory=EndedGroups)
    # Since the start of the run.
    restarts: int = 0  # of engines, in processes before this one
    tokens_generated: int = 0  # up to the last step
    tokens_trained: int = 0  # likewise
    last_swap: SwapReport = SwapReport(0, 0.0, 0.0)
    selection: Selection = field(default_factory=Selection)
    token_ages: dict[Count, Count] = {}  # age -> trained tokens
    num_spanning: int = 0  # trained trajectories that two or more versions have sampled
    # Of files.
    metrics_bytes: int = 0  # size of metrics.jsonl
    trace_bytes: int = 0  # size of trace.json
    num_files: int = 0  # trajectory files

    def after_pause(self, seconds: float) -> "RecorderState":
        """Return it for a clock that has gone on without training: the start-up of a resumed run is no step's time."""
        return structs.replace(self, start=self.start + seconds, last_step=self.last_step + seconds)


class RunRecords:
    """Keep in memory what a running run needs of its records; all of them are in metrics.jsonl.

    Args:
        past: those of a resumed run.
    """

    def __init__(self, past: Iterable[Record] = ()) -> None:
        self.newest: deque[Record] = deque(maxlen=KEPT)
        self.tokens_trained = 0  # of all steps
        self.evaluations: dict[str, tuple[int, float]] = {}  # suite -> its newest version, and that one's accuracy
        self.evaluated: set[tuple[str, int]] = set()  # suites with the versions that they have measured
        self.alarms = Alarms()
        for record in past:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take the next record, of a step or of an evaluation."""
        self.newest.append(record)
        self.alarms.add(record)
        if "tokens/trained" in record:
            self.tokens_trained += int(number(record, "tokens/trained"))
        for name in record:
            if name.startswith(OF_EVALUATION) and name.endswith(ACCURACY):
                suite = name.removeprefix(OF_EVALUATION).removesuffix(ACCURACY)
                found = (int(number(record, "policy_version")), number(record, name))
                self.evaluated.add((suite, found[0]))
                self.evaluations[suite] = max(found, self.evaluations.get(suite, found))


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
        self._equal_steps = 0  # in a row
        self._kinds: set[str] = set()  # of failures of a user's code that were shown with their traceback
        self._metrics = open_at(directory / METRICS_FILE, self.state.metrics_bytes)
        self._trace = Trace(directory, self.state.trace_bytes)
        self._spans = current_sink()
        if self._spans is not None:
            self._spans.open(self._trace.add)
        self._trajectories: TrajectoryFiles | None = None
        if trajectories:
            self._trajectories = TrajectoryFiles(directory / TRAJECTORIES, self.state.num_files, codec, threaded)
        self.records = RunRecords(self.read_records())
        self._trackers = trackers
        past = tuple(self.read_records()) if trackers else ()
        for tracker in trackers:
            tracker.start(past)

    def watch(self, read_meters: Callable[[], Meters], recorded: Callable[[int], None] = lambda version: None) -> None:
        """Begin to count. `read_meters` is called at every step, and `recorded` with its version after its record."""
        self._read_meters = read_meters
        self._recorded = recorded
        self._at_last_step = read_meters().counted_since(self.state.since)

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
            sinks.callback(close_written, self._metrics)

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
        meters = self._read_meters()
        state = copy.deepcopy(self.state)
        state.since = meters.counted_since(self._at_last_step)
        state.restarts += meters.restarts
        state.metrics_bytes = flushed_size(self._metrics)
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
        self.state.selection.generated.add(group)
        self.state.ended.add(group)

    def group_lost(self, group: TrajectoryGroup, fate: str, cause: BaseException | None) -> None:
        """Count a group that is not trained. Rejected ones are not shown: a filter may reject hundreds."""
        self.state.selection.add_lost(group, fate)
        self.state.ended.add(group, fate)
        if self._trajectories:
            self._trajectories.write(group_rows(group, fate, None))
        if fate != REJECTED:
            why = f": {type(cause).__name__}: {cause}" if cause else ""
            line = f"problem {group.problem.id}: group {fate}{why}"
            self._display.lost(line)
            if isinstance(cause, UserCodeError):
                self._log_user_code(line, cause)

    def _log_user_code(self, line: str, cause: UserCodeError) -> None:
        """Log what an env or a filter did, and show the traceback of the first failure of each kind."""
        log = self._directory / ENV_LOG
        if cause.kind not in self._kinds:
            self._kinds.add(cause.kind)
            self._display.note(f"{cause.trace}Others of this kind are shown without traceback; all are in {log}")
        with writing(log):
            log.parent.mkdir(exist_ok=True)
            with log.open("a") as file:
                file.write(f"{line}\n{cause.trace}")

    def swapped(self, report: SwapReport) -> None:
        """Note that the engines have loaded a version."""
        self.state.last_swap = report
        self.state.num_swaps += 1
        self.state.paused += report.pause_seconds
        self.state.recomputed += report.recomputed_tokens
        self._trace.span("engines", f"swap to {report.version}", now() - report.seconds, now())

    def step_finished(self, batch: Batch, result: StepResult, waits: StepWaits) -> None:
        """Write the record of a step, and count anew what the next one counts."""
        state = self.state
        got_batch = state.last_step + waits.total
        self._trace.span("trainer", "wait for batch", state.last_step, got_batch)
        self._trace.span("trainer", f"step {batch.version}", got_batch, now(), version=result.version)
        self._trace.flush()  # so that others read it
        ages = ages_of(batch)
        state.num_spanning += ages.num_spanning
        for age, count in enumerate(ages.tokens):
            if count:
                state.token_ages[age] = state.token_ages.get(age, 0) + count
        for group in batch.groups:
            state.selection.trained.add(group)
        meters = self._read_meters()
        record: Record = {
            "step": result.version,
            "policy_version": result.version,
            "time_s": self.seconds,
            "epochs": meters.epochs,
        }
        record |= meters.of_order
        record |= batch_metrics(batch, consumed_at=got_batch)
        record |= source_metrics(batch)
        record |= state.ended.metrics()
        record |= ages.metrics
        record |= result.metrics
        record |= self._swap_metrics()
        record |= state.selection.metrics(meters.admitted, meters.open_tokens, meters.restarted_tokens)
        record |= self._rates(record, meters, waits)
        state.last_step = now()
        state.ended = EndedGroups()
        self._at_last_step = meters
        told = len(self.records.alarms.said)
        self._write(record)
        self._show_samples(batch, result)
        if self._trajectories:
            for group, tokens in zip(batch.groups, split_tokens(batch, result.tokens), strict=True):
                self._trajectories.write(group_rows(group, TRAINED, batch.version, tokens))
            self._trajectories.end_step()
        self._display.step(record)
        for line in [*self.records.alarms.said.values()][told:]:
            self._display.note(line)
        self._note_equal_rewards(record)
        self._recorded(result.version)

    def evaluated(self, accuracy: Accuracy, time_s: float) -> None:
        """Write the record of an evaluation of this time, once; it may come after those of later steps."""
        version = accuracy.version
        if (accuracy.suite, version) in self.records.evaluated:  # as in a run that is resumed
            return
        record: Record = {"step": version, "policy_version": version, "time_s": time_s}
        record[f"eval/{accuracy.suite}/accuracy"] = accuracy.mean_reward
        record[f"eval/{accuracy.suite}/problems"] = accuracy.problems
        self._write(record)

    def read_records(self) -> Iterator[Record]:
        """Yield all records of the run from its file, one at a time, because those of a long run take gigabytes."""
        with (self._directory / METRICS_FILE).open() as file:
            for line in file:
                yield json.loads(line)

    # ---- metrics

    def _swap_metrics(self) -> Record:
        """Compute sync/… of the swaps since the last step, and count anew."""
        state = self.state
        swap = state.last_swap
        record: Record = {"sync/seconds": swap.seconds, "sync/pause_seconds": swap.pause_seconds}
        for part, seconds in structs.asdict(swap.parts).items():
            record[f"sync/{part}_seconds"] = seconds
        record["sync/swaps"] = state.num_swaps
        record["sync/paused_s"] = state.paused
        record["sync/recomputed_tokens"] = state.recomputed
        state.num_swaps = 0
        state.paused = 0.0
        state.recomputed = 0
        return record

    def _rates(self, record: Record, meters: Meters, waits: StepWaits) -> Record:
        """Compute what happened between two steps: tokens, idle time, waits."""
        state = self.state
        since = meters.counted_since(self._at_last_step)
        seconds = now() - state.last_step
        elapsed = max(seconds, 1e-9)
        trained = int(number(record, "tokens/trained"))
        generated = int(number(record, "audit/tokens_generated"))
        rates: Record = {
            "tokens/generated": generated - state.tokens_generated,
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
        state.tokens_generated = generated
        state.tokens_trained += trained
        return rates

    def _write(self, record: Record) -> None:
        """Append a record, whose metrics must all be defined, to the file, and hand it to the trackers."""
        undefined = {name for name in record if not is_defined(name)}
        assert not undefined, f"undefined metrics: {undefined}"
        self.records.add(record)
        with writing(self._directory / METRICS_FILE):
            self._metrics.write(json.dumps(record) + "\n")
        for tracker in self._trackers:
            tracker.log(record)

    def _show_samples(self, batch: Batch, result: StepResult) -> None:
        every = self._samples_every
        if every and result.version % every == 0 and self._trackers and self._codec is not None:
            samples = choose_samples(batch, result, NUM_SAMPLES, self._codec)
            for tracker in self._trackers:
                tracker.log_samples(result.version, samples)

    def _note_equal_rewards(self, record: Record) -> None:
        """Say that a policy learns nothing, because all episodes of a step have one reward, several steps in a row."""
        is_equal = number(record, "reward/trained_std") < SAME
        self._equal_steps = self._equal_steps + 1 if is_equal else 0
        if self._equal_steps == EQUAL_STEPS:
            reward = number(record, "reward/trained_mean")
            self._display.note(
                f"in each of the last {EQUAL_STEPS} steps all episodes had one reward, now {reward:g}: nothing can be "
                f"learned from that; `arl samples {self._directory}` shows what was answered and how it was graded"
            )
