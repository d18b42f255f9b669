"""Break off a computation in this process when it has used its time of the CPU."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

REPEAT_SECONDS = 0.1  # the alarm rings again, because code in between may have swallowed it
Result = TypeVar("Result")


class _OutOfTime(BaseException):
    """Break off a computation. No `except Exception` of a library stops it."""


def run_within(seconds: float, function: Callable[[], Result], what: str) -> Result:
    """Call a function, and break it off when it has used so much time of the CPU.

    It is no time of the clock, so that a busy machine decides as an idle one does; for that, the pool has its deadline.

    Raises:
        TimeoutError: the time was over; names `what`.
        RuntimeError: called outside of the main thread of a process, where the alarm cannot be received.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("math is verified in the main thread of a process alone: its time limit is a signal")
    is_running = True

    def ring(signum: int, frame: FrameType | None) -> None:
        if is_running:
            raise _OutOfTime

    previous = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, REPEAT_SECONDS)
    try:
        return function()
    except _OutOfTime:
        raise TimeoutError(f"no verdict within {seconds:g} s on the answer {what}") from None
    finally:
        is_running = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
