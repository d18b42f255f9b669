"""Stop a run cleanly at the first Ctrl-C, SIGTERM or SIGHUP, so that it can be resumed from where it is.

    1st signal ─► Controller.stop: the step in progress ends, no other begins ─► checkpoint ─► all ends ─► RunStopped
    2nd signal, or deadlines.stop has passed ─► everything ends at once

Only training on the wall clock stops in this way. Start-up, warm-up and evaluation end at once, because they have
nothing to save. A run in virtual time ends at once as well, because there a checkpoint is an event of the schedule.
"""

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType

from arl.clock import now
from arl.errors import RunError, RunStopped
from arl.metrics.run_files import RECIPE
from arl.run.checkpoint import checkpoints_in
from arl.run.evaluation.scoreboard import CHECKPOINTS

RESUME_WITH = "resume with: "  # begins the last line of a run that can be resumed
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last one: a terminal or ssh was closed


@contextlib.asynccontextmanager
async def stopped_by_signals(
    stop: Callable[[], None], note: Callable[[str], None], seconds: float, late: Callable[[], RunStopped]
) -> AsyncIterator[None]:
    """Call `stop` at the first of SIGNALS, and then give the block `seconds` to end.

    Every later signal has the effect that it had before, and so has the first one, if it comes so late that the block
    ends before the loop can call `stop`. A signal that no function handles is left alone: what a library's user has not
    asked for, and Ctrl-C where a shell has started the command in the background.

    Raises:
        RunStopped: the block has not ended by then; what `late` returns.
    """
    loop = asyncio.get_running_loop()
    earlier: dict[int, Callable[[int, FrameType | None], object]] = {}
    pending: list[int] = []  # the first signal, until `stop` is called

    def restore() -> None:
        for number, handler in earlier.items():
            signal.signal(number, handler)

    def handle(number: int, frame: FrameType | None) -> None:
        restore()
        pending.append(number)
        loop.call_soon_threadsafe(begin)

    def begin() -> None:
        if not pending:  # the block has ended
            return
        pending.clear()
        scope.reschedule(now() + seconds)
        stop()  # before the note: the terminal may be gone
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
        raise late() from error


def stopped(directory: Path, version: int) -> RunStopped:
    """Return what the user is told of a run that has stopped with a checkpoint of `version`."""
    if version == 0:
        return RunStopped("stopped before its first step, so there is no checkpoint to resume from")
    return RunStopped(f"stopped at version {version}; {RESUME_WITH}{resume_command(directory)}")


def not_saved(directory: Path, version: int, seconds: float) -> RunStopped:
    """Return what the user is told of a run that could not be saved in time."""
    return RunStopped(
        f"stopped at version {version} without a checkpoint of it, which was not complete {seconds:g} s after the "
        f"first signal (deadlines.stop); resume from the last one with: {resume_command(directory)}"
    )


@contextlib.contextmanager
def failures_with_resume_command(directory: Path) -> Iterator[None]:
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
