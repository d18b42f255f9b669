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
from arl.engine.router import Replica
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
LOOPS = ("trainer", "controller", "publisher", "admission")  # who waits, in the words of `deadline`
LONG_SECONDS = 10.0
AVERAGED = 10  # steps of a speed
MAX_WAITS = 12


class StatusWriter:
    """Hold what is known of a run; `run` writes it every PERIOD."""

    def __init__(self, context: RunContext, stage: str) -> None:
        self._context = context
        self._controller: Controller | None = None
        self._records = RunRecords()
        self._writing = threading.Lock()
        self._written_at = 0.0  # clock of the newest status that was written
        self.parts: Parts | None = None  # of the opened world
        self.stage = stage
        self.end = ""

    def watch_training(self, controller: Controller, recorder: Recorder) -> None:
        """Show what the controller does, and what is recorded."""
        self.stage = "training"
        self._controller = controller
        self._records = recorder.records

    async def run(self) -> None:
        """Write and show the status until this is canceled.

        Consumes nothing; waits for PERIOD; unblocked by the clock alone.
        """
        while True:
            measured = await in_thread(self.write, self.status())
            self._context.display.show_status(measured)
            await asyncio.sleep(PERIOD)

    def write(self, status: RunStatus) -> RunStatus:
        """Add the memory, write the file and return what it holds.

        A status that is older than the file is not written. The thread of `run` outlives its cancellation, and would
        otherwise replace the last status, which says how the run has ended. A file that cannot be written is left out,
        because that does not concern the run.
        """
        measured = _with_memory(status)
        with self._writing, contextlib.suppress(OSError):
            if measured.clock >= self._written_at:
                self._written_at = measured.clock
                write_status(self._context.directory, measured)
        return measured

    def status(self) -> RunStatus:
        """Return what the run does now."""
        context = self._context
        recipe = context.recipe
        controller = self._controller
        records = self._records
        version = context.version if controller is None else controller.version
        speed = recent_speed(records.newest)
        is_stopping = controller is not None and controller.is_stopping
        here = ProcessStatus(
            role="controller", node=context.plan.nodes[0].name, pid=os.getpid(), since=started_at(os.getpid())
        )
        return RunStatus(
            host=platform.node(),
            pid=os.getpid(),
            time=time.time(),
            clock=now(),
            stage="stopping" if is_stopping else self.stage,
            end=self.end,
            version=version,
            steps=recipe.train.steps,
            tokens=records.tokens_trained,
            most_tokens=recipe.train.tokens,
            loaded_version=version if self.parts is None else self.parts.engine.loaded_version,
            staleness=recipe.rollout.staleness,
            has_exact_lag=recipe.rollout.lag is not None,
            groups=None if controller is None else _groups(controller, recipe),
            waits=longest_waits(current_waits()),
            last_step=_last_step(records.newest),
            speed=speed,
            evaluations=dict(records.evaluations),
            seconds_left=None if speed is None else seconds_left(recipe.train, version, records.tokens_trained, speed),
            processes=(here, *(() if self.parts is None else self.parts.processes())),
        )


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
        cause = cause_to_show(error)
        first_line = str(cause).partition("\n")[0]  # lines of logs that follow stay out
        writer.end = first_line if isinstance(cause, RunStopped) else f"failed: {first_line}"
        if isinstance(cause, asyncio.CancelledError):
            writer.end = "interrupted"
        raise
    finally:
        writer.write(writer.status())


def _last_step(records: Sequence[Record]) -> dict[str, float]:
    """Return the numbers of the last step."""
    steps = _last_steps(records, 1)
    return {name: value for step in steps for name, value in step.items() if isinstance(value, int | float)}


def longest_waits(waits: Sequence[tuple[str, str, float]]) -> tuple[WaitStatus, ...]:
    """Choose the waits that may say why nothing moves: those of the run's loops first, then the longest.

    Requests of engines and calls of rewards wait all the time, so those are shown once they take long.
    """
    shown = [WaitStatus(*wait) for wait in waits if wait[0] in LOOPS or wait[2] >= LONG_SECONDS]
    shown.sort(key=lambda wait: (wait.who not in LOOPS, -wait.seconds))
    return tuple(shown[:MAX_WAITS])


def _groups(controller: Controller, recipe: Recipe) -> GroupsStatus:
    """Count the groups in flight: (η + 1) · P at most by the bound, and rollout.max_groups."""
    rollout = recipe.rollout
    limits = [] if rollout.max_groups is None else [rollout.max_groups]
    if rollout.lag is None and rollout.tail_batching is None and not rollout.is_unbounded:
        limits.append((rollout.max_age + 1) * rollout.problems_per_step)
    running, finished = controller.num_groups
    capacity = min(limits, default=None)
    return GroupsStatus(
        running=running, finished=finished, capacity=capacity, problems_per_step=rollout.problems_per_step
    )


def _with_memory(status: RunStatus) -> RunStatus:
    """Add the memory of the processes on this machine. It takes milliseconds, so a thread does it."""
    sessions = resident_bytes()
    sessions[status.pid] = psutil.Process().memory_info().rss  # without those that it has started
    here = status.processes[0].node
    measured = [
        structs.replace(process, memory_bytes=sessions[process.pid])
        if process.node == here and process.state == RUNS and process.pid
        else process
        for process in status.processes
    ]
    return structs.replace(status, processes=tuple(measured))


# ---- speed


def recent_speed(records: Sequence[Record]) -> Speed | None:
    """Return the means over the last steps; None: there is no step yet."""
    steps = _last_steps(records, AVERAGED)
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
    tokens_of_step = round(speed.trained_per_s * speed.step_seconds)
    if train.tokens is not None and tokens_of_step:
        steps = min(steps, math.ceil((train.tokens - tokens) / tokens_of_step))
    return max(steps, 0) * speed.step_seconds


def _last_steps(records: Sequence[Record], count: int) -> list[Record]:
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
        """Return the processes beside this one: the launcher's, engines that have joined, the rewards'."""
        states = [self._describe(process) for process in self._launcher.processes]
        for engine in self._pool.statuses():
            if engine.state == "joined" and engine.pid is not None:  # somebody else has started it
                since = time.time() - engine.seconds
                states.append(ProcessStatus(role=engine.name, node=engine.node, pid=engine.pid, since=since))
        replicas = self._pool.replicas
        states = [_with_load(state, replicas.get(state.role)) for state in states]
        if self._rewards.pid is not None:
            states.append(
                ProcessStatus(
                    role="reward-0",
                    node=self._nodes[0],
                    pid=self._rewards.pid,
                    since=started_at(self._rewards.pid),
                    open_requests=self._rewards.num_open,
                )
            )
        return states

    def _describe(self, process: Process) -> ProcessStatus:
        pids = self._seen.setdefault(process.role, {})
        if process.pid and process.pid not in pids:  # 0: its node is still starting it
            pids[process.pid] = (started_at(process.pid) if process.node == 0 else None) or time.time()
        code = process.exit_code
        return ProcessStatus(
            role=process.role,
            node=self._nodes[process.node],
            pid=process.pid,
            state=RUNS if code is None else f"ended, code {code}",
            since=pids.get(process.pid),
            restarts=max(len(pids) - 1, 0),
        )


def _with_load(status: ProcessStatus, replica: Replica | None) -> ProcessStatus:
    if replica is None or status.state != RUNS:
        return status
    load = replica.load
    return structs.replace(
        status,
        version=replica.engine.loaded_version,
        open_requests=replica.open,
        running=load.running,
        waiting=load.waiting,
        slots=load.slots,
        cache_tokens=load.tokens,
        cache_capacity=load.capacity,
    )
