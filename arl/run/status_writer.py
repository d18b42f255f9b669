"""Write status.json about once a second, and show the same on the console, while a run goes on on the wall clock.

controller, recorder, world's processes ─► RunStatus ─► status.json ─► `arl top`, on any host
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

from arl.clock import current_waits, in_thread
from arl.config.recipe import Train
from arl.errors import RunStopped
from arl.launch.spawn import resident_bytes
from arl.metrics.names import Record, number
from arl.metrics.recorder import Recorder, RunRecords
from arl.metrics.run_status import ProcessStatus, RunStatus, Speed, WaitStatus, write_status
from arl.rollout.controller import Controller
from arl.run.failures import cause_to_show
from arl.run.world import Parts, RunContext

PERIOD = 1.0  # seconds between two writes
LOOPS = ("trainer", "controller", "publisher", "admission")  # who waits, in the words of `deadline`
LONG_SECONDS = 10.0
AVERAGED = 10  # steps of a speed
MAX_WAITS = 3


class StatusWriter:
    """Hold what is known of a run; `run` writes it every PERIOD."""

    def __init__(self, context: RunContext, stage: str) -> None:
        self._context = context
        self._controller: Controller | None = None
        self._records = RunRecords()
        self.parts: Parts | None = None  # of the opened world
        self.stage = stage
        self.end = ""
        self._lock = threading.Lock()

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
            status = await in_thread(self.write, self.status())  # a slow file system holds up nothing else
            self._context.display.show_status(status)
            await asyncio.sleep(PERIOD)

    def write(self, status: RunStatus) -> RunStatus:
        """Add the memory of processes, write the file, and return what it holds.

        It is never written over how the run has ended. One that cannot be written does not concern the run.
        """
        status = _with_memory(status)
        with self._lock, contextlib.suppress(OSError):
            if status.end or not self.end:
                write_status(self._context.directory, status)
        return status

    def status(self) -> RunStatus:
        """Return what the run does now."""
        recipe = self._context.recipe
        controller = self._controller
        parts = self.parts
        records = self._records
        version = self._context.version if controller is None else controller.version
        speed = recent_speed(records.newest)
        rewards = dict(records.evaluations)
        for step in _last_steps(records.newest, 1):
            rewards["training"] = (int(number(step, "step")), number(step, "reward/trained_mean"))
        here = ProcessStatus(role="controller", node=self._context.plan.nodes[0].name, pid=os.getpid())
        bound = "exact lag" if recipe.rollout.lag is not None else f"bound {recipe.rollout.staleness}"
        return RunStatus(
            host=platform.node(),
            pid=os.getpid(),
            time=time.time(),
            stage="stopping" if controller is not None and controller.is_stopping else self.stage,
            end=self.end,
            version=version,
            steps=recipe.train.steps,
            loaded_version=version if parts is None else parts.engine.loaded_version,
            bound="no bound" if bound == "bound None" else bound,
            groups=None if controller is None else controller.num_groups,
            waits=longest_waits(current_waits()),
            speed=speed,
            rewards=rewards,
            alarms=tuple(records.alarms.said.values()),
            seconds_left=None if speed is None else seconds_left(recipe.train, version, records.tokens_trained, speed),
            processes=(here, *(() if parts is None else parts.processes())),
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


def longest_waits(waits: Sequence[tuple[str, str, float]]) -> tuple[WaitStatus, ...]:
    """Choose the waits that may say why nothing moves: those of the run's loops first, then the longest.

    Requests of engines and calls of rewards wait all the time, so those are shown once they take long.
    """
    shown = [WaitStatus(*wait) for wait in waits if wait[0] in LOOPS or wait[2] >= LONG_SECONDS]
    shown.sort(key=lambda wait: (wait.who not in LOOPS, -wait.seconds))
    return tuple(shown[:MAX_WAITS])


def _with_memory(status: RunStatus) -> RunStatus:
    """Add the memory of the processes on this machine, which takes milliseconds."""
    sessions = resident_bytes()
    sessions[status.pid] = psutil.Process().memory_info().rss  # without those that it has started
    here = status.processes[0].node
    measured = []
    for process in status.processes:
        size = sessions.get(process.pid) if process.pid and process.node == here else None
        measured.append(structs.replace(process, memory_bytes=size))
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
