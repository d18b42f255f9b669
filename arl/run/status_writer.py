"""Write status.json about once a second, and show the same on the console, while a run goes on on the wall clock.

controller, recorder, world's processes ─► RunStatus ─► a thread writes the file ─► `arl top`, on any host
                                               └─► ConsoleDisplay

In virtual time nothing is written, because the seconds of a person mean nothing there.
"""

import asyncio
import contextlib
import math
import os
import platform
import threading
import time
from collections.abc import AsyncIterator, Sequence

import psutil
from msgspec import structs

from arl.clock import current_waits, in_thread, now
from arl.config.recipe import Recipe, Train
from arl.engine.replicas import Replica
from arl.errors import RunStopped
from arl.launch.base import Launcher, Process
from arl.launch.spawn import resident_bytes, started_at
from arl.metrics.names import Record, number
from arl.metrics.recorder import Recorder, RunRecords
from arl.metrics.run_status import RUNS, GroupsStatus, ProcessStatus, RunStatus, Speed, WaitStatus, write_status
from arl.reward.pool import RewardPool
from arl.rollout.controller import Controller
from arl.run.engine_pool import EnginePool
from arl.run.failures import cause_to_show
from arl.run.world import Parts, RunContext

PERIOD = 1.0  # seconds between two writes
SHOWN_OF_STEP = ("step", "reward/trained_mean", "staleness/mean", "staleness/max")

LOOPS = ("trainer", "controller", "publisher", "admission")  # who waits, in the words of `deadline`
LONG_SECONDS = 10.0
AVERAGED = 10  # steps of a speed
ROUNDING = 1e-9  # of a quotient of floats
NO_PID = 0  # of a process that its node is still starting
MAX_WAITS = 12


class StatusWriter:
    """Hold what is known of a run; `run` writes it every PERIOD."""

    def __init__(self, context: RunContext, stage: str) -> None:
        self._context = context
        self._controller: Controller | None = None
        self._recorder: Recorder | None = None
        self._has_failed = False
        self._writing = threading.Lock()
        self._written_at = 0.0  # clock of the newest status that was written
        self.parts: Parts | None = None  # of the opened world
        self.stage = stage
        self.end = ""

    def watch_training(self, controller: Controller, recorder: Recorder) -> None:
        """Show what the controller does, and what is recorded."""
        self.stage = "training"
        self._controller = controller
        self._recorder = recorder

    async def run(self) -> None:
        """Write and show the status until this is canceled.

        Consumes nothing; waits for PERIOD; unblocked by the clock alone.
        """
        while True:
            status = self.status()
            measured = await in_thread(self.write, status)
            self._context.display.show_status(measured)
            await asyncio.sleep(PERIOD)

    def write(self, status: RunStatus) -> RunStatus:
        """Add the memory, write the file and return what it holds.

        A status that is older than the file is not written. The thread of `run` outlives its cancellation, and would
        otherwise replace the last status, which says how the run has ended.

        A file that cannot be written is noted once, because that does not concern the run.
        """
        measured = _with_memory(status)
        with self._writing:
            if measured.clock < self._written_at:
                return measured
            self._written_at = measured.clock
            try:
                write_status(self._context.directory, measured)
            except OSError as error:
                if not self._has_failed:
                    self._context.display.note(
                        f"status.json cannot be written ({error.strerror}): `arl top` shows nothing new"
                    )
                self._has_failed = True
        return measured

    def status(self) -> RunStatus:
        """Return what the run does now."""
        records = RunRecords() if self._recorder is None else self._recorder.records
        version = self._context.version if self._controller is None else self._controller.version
        speed = recent_speed(records.newest)
        train = self._context.recipe.train
        tokens = records.tokens_trained
        left = None if speed is None else seconds_left(train, version, tokens, speed)
        is_stopping = self._controller is not None and self._controller.is_stopping
        return RunStatus(
            host=platform.node(),
            pid=os.getpid(),
            time=time.time(),
            clock=now(),
            stage="stopping" if is_stopping else self.stage,
            end=self.end,
            version=version,
            steps=train.steps,
            tokens=tokens,
            most_tokens=train.tokens,
            loaded_version=version if self.parts is None else self.parts.engine.loaded_version,
            staleness=self._context.recipe.rollout.staleness,
            has_exact_lag=self._context.recipe.rollout.lag is not None,
            groups=self._groups(),
            waits=longest_waits(current_waits()),
            last_step=_last_step(records.newest),
            speed=speed,
            evaluations=dict(records.evaluations),
            seconds_left=left,
            processes=self._processes(),
        )

    def _groups(self) -> GroupsStatus | None:
        if self._controller is None:
            return None
        running, finished = self._controller.num_groups
        per_step = self._context.recipe.rollout.problems_per_step
        capacity = _capacity(self._context.recipe)
        return GroupsStatus(running=running, finished=finished, capacity=capacity, problems_per_step=per_step)

    def _processes(self) -> tuple[ProcessStatus, ...]:
        """Return the processes of the opened world, or this one alone."""
        known = () if self.parts is None else tuple(self.parts.processes())
        return known or (ProcessStatus(role="controller", node=platform.node(), pid=os.getpid()),)


@contextlib.asynccontextmanager
async def written_status(context: RunContext, stage: str) -> AsyncIterator[StatusWriter]:
    """Yield the writer of a run, which writes until the end of the block, and then how it has ended.

    Args:
        stage: what the run does first.
    """
    writer = StatusWriter(context, stage)
    if context.recipe.world_traits.virtual_time:
        yield writer
        return
    try:
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(writer.run(), name="status")
            yield writer
            writing.cancel()
    except BaseException as error:
        writer.end = _describe_end(cause_to_show(error))
        raise
    finally:
        writer.write(writer.status())


def _describe_end(cause: BaseException) -> str:
    """Describe in one line what has ended a run; lines of logs that follow stay out."""
    if isinstance(cause, asyncio.CancelledError):
        return "interrupted"
    first_line = str(cause).partition("\n")[0]
    if isinstance(cause, RunStopped):
        return first_line
    return f"failed: {first_line}"


def _last_step(records: Sequence[Record]) -> dict[str, float]:
    for step in last_steps(records, 1):
        return {name: number(step, name) for name in SHOWN_OF_STEP if name in step}
    return {}


def longest_waits(waits: Sequence[tuple[str, str, float]]) -> tuple[WaitStatus, ...]:
    """Choose the waits that may say why nothing moves: those of the run's loops first, then the longest.

    Requests of engines and calls of rewards wait all the time, so those are shown once they take long.
    """
    shown = [WaitStatus(*wait) for wait in waits if wait[0] in LOOPS or wait[2] >= LONG_SECONDS]
    shown.sort(key=lambda wait: (wait.who not in LOOPS, -wait.seconds))
    return tuple(shown[:MAX_WAITS])


def _capacity(recipe: Recipe) -> int | None:
    """Return how many groups may be in flight at once: (η + 1) · P by the bound, and rollout.max_groups at most."""
    rollout = recipe.rollout
    limits = [] if rollout.max_groups is None else [rollout.max_groups]
    if rollout.lag is None and rollout.tail_batching is None and not rollout.is_unbounded:
        limits.append((rollout.max_age + 1) * rollout.problems_per_step)
    return min(limits, default=None)


def _with_memory(status: RunStatus) -> RunStatus:
    """Add the memory of the processes on this machine. It takes milliseconds, so a thread does it."""
    sessions = resident_bytes()
    here = status.processes[0].node  # the controller's

    def measured(process: ProcessStatus) -> ProcessStatus:
        if process.node != here or process.state != RUNS or not process.pid:
            return process
        size = psutil.Process().memory_info().rss if process.pid == status.pid else sessions[process.pid]
        return structs.replace(process, memory_bytes=size)

    return structs.replace(status, processes=tuple(measured(process) for process in status.processes))


# ---- speed


def recent_speed(records: Sequence[Record]) -> Speed | None:
    """Return the means over the last steps; None: there is no step yet."""
    steps = last_steps(records, AVERAGED)
    seconds = sum(number(step, "time/step_s") for step in steps)
    if seconds <= 0:
        return None

    def share(name: str) -> float:
        return sum(number(step, name) for step in steps) / seconds

    return Speed(
        steps=len(steps),
        step_seconds=seconds / len(steps),
        generated_per_s=share("tokens/generated"),
        trained_per_s=share("tokens/trained"),
        trainer_waits={cause: share(f"wait/{cause}_s") for cause in ("groups", "bound", "device")},
        engine_idle=sum(number(step, "idle/engine") * number(step, "time/step_s") for step in steps) / seconds,
        gate=share("wait/gate_s"),
    )


def seconds_left(train: Train, version: int, tokens: int, speed: Speed) -> float:
    """Return how long a run still takes at this speed: until `train.steps`, or the step that reaches `train.tokens`.

    Args:
        version: that is trained.
        tokens: loss tokens that are trained.
    """
    steps = train.steps - version
    tokens_of_step = speed.trained_per_s * speed.step_seconds
    if train.tokens is not None and tokens_of_step > 0:
        by_tokens = math.ceil((train.tokens - tokens) / tokens_of_step - ROUNDING)
        steps = min(steps, by_tokens)
    return max(steps, 0) * speed.step_seconds


def last_steps(records: Sequence[Record], count: int) -> list[Record]:
    """Return the records of the last steps, the newest first; evaluations have records, too."""
    return [record for record in reversed(records) if "time/step_s" in record][:count]


# ---- processes


class ProcessStates:
    """Read the state of every process, as the controller knows it: nothing is asked over the network."""

    def __init__(self, launcher: Launcher, pool: EnginePool, rewards: RewardPool) -> None:
        self._launcher = launcher
        self._pool = pool
        self._nodes = [node.name for node in launcher.nodes]  # reading them may look for devices
        self._rewards = rewards
        self._seen: dict[str, dict[int, float]] = {}  # role -> each pid it has had, and since when

    def now(self) -> list[ProcessStatus]:
        """Return the processes: the controller, those of the launcher, engines that have joined, the rewards'."""
        here = self._nodes[0]
        states = [ProcessStatus(role="controller", node=here, pid=os.getpid(), since=started_at(os.getpid()))]
        states += [self._describe(process) for process in self._launcher.processes]
        for engine in self._pool.statuses():
            if engine.state == "joined" and engine.pid is not None:  # somebody else has started it
                states.append(
                    ProcessStatus(
                        role=engine.name,
                        node=engine.node,
                        pid=engine.pid,
                        since=time.time() - engine.seconds,
                        version=engine.version,
                        open_requests=engine.open,
                    )
                )
        pid = self._rewards.pid
        if pid is not None:
            since = started_at(pid)
            calls = self._rewards.num_open
            states.append(ProcessStatus(role="reward-0", node=here, pid=pid, since=since, open_requests=calls))
        return states

    def _describe(self, process: Process) -> ProcessStatus:
        since, restarts = self._history(process.role, process.pid, process.node)
        code = process.exit_code
        status = ProcessStatus(
            role=process.role,
            node=self._nodes[process.node],
            pid=process.pid,
            state=RUNS if code is None else f"ended, code {code}",
            since=since,
            restarts=restarts,
        )
        seat = process.role.removeprefix("engine-")
        replica = self._pool.router.replica(int(seat)) if seat != process.role and seat.isdecimal() else None
        return status if replica is None or code is not None else _with_load(status, replica)

    def _history(self, role: str, pid: int, node: int) -> tuple[float | None, int]:
        """Return since when a process runs, and how often its role was started again."""
        pids = self._seen.setdefault(role, {})
        if pid == NO_PID:
            return None, len(pids)
        if pid not in pids:
            pids[pid] = (started_at(pid) if node == 0 else None) or time.time()
        return pids[pid], len(pids) - 1


def _with_load(status: ProcessStatus, replica: Replica) -> ProcessStatus:
    known = structs.replace(status, version=replica.engine.loaded_version, open_requests=replica.open)
    if not replica.has_reported:
        return known
    load = replica.load
    return structs.replace(
        known,
        running=load.running,
        waiting=load.waiting,
        slots=load.slots,
        cache_tokens=load.tokens,
        cache_capacity=load.capacity,
    )
