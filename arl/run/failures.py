"""End a run cleanly at the first signal, and turn whatever else ended it into one exception that says why.

    exceptions of many tasks ─► explain_deaths: which process died, or hangs ─► reported_failures: the one to show

    1st Ctrl-C, SIGTERM or SIGHUP ─► Controller.stop: the step in progress ends ─► checkpoint ─► all ends ─► RunStopped
    2nd signal, or deadlines.stop has passed ─► everything ends at once

Only training on the wall clock stops in this way. Start-up, warm-up and evaluation end at once, because they have
nothing to save. A run in virtual time ends at once as well, because there a checkpoint is an event of the schedule.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

from safetensors import SafetensorError

from arl.clock import now
from arl.engine.router import DEATH_SECONDS
from arl.errors import (
    ArlError,
    DeadlineError,
    DiskError,
    EngineError,
    ProcessDied,
    RunError,
    RunStopped,
    TrainerError,
    leaves,
)
from arl.files import explain_disk
from arl.launch.base import Launcher, Process
from arl.launch.spawn import RUNS
from arl.metrics.run_files import RECIPE
from arl.rollout.controller import Controller
from arl.run.checkpoint import checkpoints_in
from arl.run.evaluation.scoreboard import CHECKPOINTS

SHOWN = 4  # processes whose logs an error shows, at most
RESUME_WITH = "resume with: "  # begins the last line of a run that can be resumed
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last one: a terminal or ssh was closed


@contextlib.asynccontextmanager
async def explain_deaths(launcher: Launcher) -> AsyncIterator[None]:
    """Raise what happened to a process, in the place of what the others noticed of it.

    If a process has died, that is raised instead of the broken connections that it caused. If an engine failed and
    lives, the ends of the engines' logs are added. If a deadline passed, the processes that hang are added.
    """
    try:
        yield
    except Exception as error:
        explained = await _explained(list(leaves(error)), launcher)
        if explained is None:
            raise
        raise explained from error


async def _explained(causes: Sequence[BaseException], launcher: Launcher) -> RunError | None:
    """Return the death or the hang of a process that is behind `causes`, or None."""
    # One of a kind may be the cause of those that follow. A deadline says least.
    sides = (EngineError, TrainerError)
    order: Sequence[tuple[type[RunError], ...]] = ((DiskError,), (ProcessDied,), sides, (DeadlineError,))
    found = [cause for kinds in order for cause in causes if isinstance(cause, kinds)]
    if not found:
        return None
    cause = found[0]
    if isinstance(cause, sides) and (ranks := _of_side(launcher, "trainer-")):
        await asyncio.sleep(DEATH_SECONDS)  # a connection may break before the process behind it has ended
        dead = [rank for rank in ranks if rank.exit_code is not None]
        if dead:  # the loss of one that a signal has killed may have ended the others
            return await min(dead, key=lambda rank: (rank.exit_code or 0) >= 0).died()
    if isinstance(cause, EngineError):
        return EngineError("\n".join([f"{cause}.", *(each.log_tail() for each in _of_side(launcher, "engine-"))]))
    if isinstance(cause.__cause__ if isinstance(cause, TrainerError) else cause, DeadlineError):
        return type(cause)(f"{cause}{await _describe_hanging(launcher)}")
    return cause


def _of_side(launcher: Launcher, prefix: str) -> list[Process]:
    return [process for process in launcher.processes if process.role.startswith(prefix)]


async def _describe_hanging(launcher: Launcher) -> str:
    """Describe the processes that cannot run, else those of the trainer, with the ends of their logs."""
    running = [process for process in launcher.processes if process.exit_code is None]
    states = await asyncio.gather(*(process.state() for process in running))
    phrases = dict(zip(running, states, strict=True))
    blocked = [process for process, phrase in phrases.items() if phrase != RUNS]
    shown = blocked or [process for process in running if process.role.startswith("trainer-")]
    return "".join(f"\n{process} {phrases[process]}.\n{process.log_tail()}" for process in shown[:SHOWN])


def describe_pause(seconds: float) -> str:
    """Say that this process could not run for a while, and that its deadlines were moved."""
    return (
        f"the controller (pid {os.getpid()}) could not run for {seconds:.0f} s, because it was stopped (Ctrl-Z?), "
        "this machine slept, or it had too much to do: nothing is lost, its deadlines are moved by as much"
    )


@contextlib.asynccontextmanager
async def reported_failures() -> AsyncIterator[None]:
    """Raise one exception of a group: the first that says what happened.

    What the system or a file of weights refused becomes a RunError, where nobody knew better.
    """
    try:
        yield
    except Exception as error:
        cause = cause_to_show(error)
        if isinstance(cause, OSError) and isinstance(cause.filename, str):
            raise DiskError(explain_disk(Path(cause.filename), cause.errno)) from error
        if isinstance(cause, OSError):
            raise RunError(f"the system refused an operation of this run: {cause}") from error
        if isinstance(cause, SafetensorError):
            raise RunError(f"a file of weights is damaged, or was changed during the run: {cause}") from error
        raise cause from error


def cause_to_show(error: BaseException) -> BaseException:
    """Return the exception of a group that says what happened: of the disk, or the first of arl's own, or the first."""
    causes = list(leaves(error))
    known = [cause for cause in causes if isinstance(cause, ArlError)]
    of_disk = [cause for cause in known if isinstance(cause, DiskError)]
    return (of_disk or known or causes)[0]


# ---- signals


@contextlib.asynccontextmanager
async def stopped_by_signals(
    run: Controller, directory: Path, note: Callable[[str], None], seconds: float
) -> AsyncIterator[None]:
    """Stop `run` at the first of SIGNALS, and then give the block `seconds` to end.

    Every later signal but SIGHUP has the effect that it had before, and so has the first one, if it comes so late that
    the block ends before the loop can call it. A signal that no function handles is left alone: what a library's user
    has not asked for, and Ctrl-C where a shell has started the command in the background.

    Raises:
        RunStopped: the block has not ended by then.
    """
    loop = asyncio.get_running_loop()
    earlier: dict[int, Callable[[int, FrameType | None], object]] = {}
    pending: list[int] = []  # the first signal, until the run is stopped

    def restore() -> None:
        for number, handler in earlier.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        if signal.SIGHUP in earlier:  # the kernel and the shell send one each when a terminal is closed
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        pending.append(number)
        loop.call_soon_threadsafe(begin)

    def begin() -> None:
        if not pending:  # the block has ended
            return
        pending.clear()
        scope.reschedule(now() + seconds)
        run.stop()  # before the note: the terminal may be gone
        note(
            f"stopping: the step in progress ends and a checkpoint is written, within {seconds:g} s; "
            "a second Ctrl-C ends everything at once"
        )

    try:
        async with asyncio.timeout(None) as scope:
            for number in SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler) and threading.current_thread() is threading.main_thread():  # no other may
                    earlier[number] = handler
                    signal.signal(number, handle)
            try:
                yield
            finally:
                restore()
                if pending:
                    signal.raise_signal(pending.pop())
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise RunStopped(
            f"stopped at version {run.version} without a checkpoint of it, which was not complete {seconds:g} s after "
            f"the first signal (deadlines.stop); resume from the last one with: {resume_command(directory)}"
        ) from error


def stopped(directory: Path, version: int) -> RunStopped:
    """Return what the user is told of a run that has stopped with a checkpoint of `version`."""
    if version == 0:
        return RunStopped("stopped before its first step, so there is no checkpoint to resume from")
    return RunStopped(f"stopped at version {version}; {RESUME_WITH}{resume_command(directory)}")


@contextlib.contextmanager
def resumable(directory: Path) -> Iterator[None]:
    """Let the failure of a run that can be resumed end with the command that does it."""
    try:
        yield
    except RunError as error:
        if checkpoints_in(directory / CHECKPOINTS):
            error.args = (f"{error}\n{RESUME_WITH}{resume_command(directory)}",)
        raise


def resume_command(directory: Path) -> str:
    """Return the command that goes on with the run in `directory`."""
    return f"arl train {directory / RECIPE} --resume"
