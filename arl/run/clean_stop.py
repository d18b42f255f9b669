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

Handler = Callable[[int, FrameType | None], object]


@contextlib.asynccontextmanager
async def stopped_by_signals(
    stop: Callable[[], None],
    note: Callable[[str], None],
    seconds: float,
    late: Callable[[], RunStopped],
) -> AsyncIterator[None]:
    """Call `stop` at the first signal, and then give the block `seconds` to end.

    Raises:
        RunStopped: the block has not ended by then; what `late` returns.
    """
    try:
        async with asyncio.timeout(None) as scope:

            def begin() -> None:
                scope.reschedule(now() + seconds)
                stop()  # before the note: the terminal may be gone
                note(
                    f"stopping: the step in progress ends and a checkpoint is written, within {seconds:g} s; "
                    "a second Ctrl-C ends everything at once"
                )

            with _first_signal(begin):
                yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise late() from error


@contextlib.contextmanager
def _first_signal(begin: Callable[[], object]) -> Iterator[None]:
    """Have the running loop call `begin` at the first of SIGNALS; every later one has the effect that it had before.

    So has the first one, if it comes so late that the block ends before the loop can call `begin`.

    A signal that no function handles is left alone: what a library's user has not asked for, and Ctrl-C where a shell
    has started the command in the background.
    """
    loop = asyncio.get_running_loop()
    earlier: dict[int, Handler] = {}
    pending: list[int] = []  # the first signal, until `begin` is called
    has_arrived = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal has_arrived
        if has_arrived:
            earlier[number](number, frame)
            return
        has_arrived = True
        pending.append(number)
        loop.call_soon_threadsafe(begin_if_pending)

    def begin_if_pending() -> None:
        if pending:
            pending.clear()
            begin()

    if threading.current_thread() is threading.main_thread():  # no other may handle signals
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                earlier[number] = handler
                signal.signal(number, handle)
    try:
        yield
    finally:
        for handled, before in earlier.items():
            signal.signal(handled, before)
        if pending:
            signal.raise_signal(pending.pop())


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
