"""Break off a computation in this process when it has used its time of the CPU."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

REPEAT_SECONDS = 0.1  # the alarm rings again, because code in between may have swallowed it


class _OutOfTime(BaseException):
    """Break off a computation. No `except Exception` of the library stops it."""


def run_within(seconds: float, function: Callable[[], bool | None], what: str) -> bool | None:
    """Call a function, and break it off when it has used so much time of the CPU.

    It is no time of the clock, so that a busy machine decides as an idle one does; for that, the pool has its deadline.

    Raises:
        TimeoutError: the time was over; names `what`.
        RuntimeError: called outside of the main thread of a process, where the alarm cannot be received.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("math is verified in the main thread of a process alone: its time limit is a signal")
    armed = True

    def ring(signum: int, frame: FrameType | None) -> None:
        if armed:
            raise _OutOfTime

    previous = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, REPEAT_SECONDS)
    start = time.process_time()
    try:
        result = function()
    except _OutOfTime:
        raise TimeoutError(f"no verdict within {seconds:g} s on the answer {what}") from None
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
    if not result and time.process_time() - start >= seconds:
        raise TimeoutError(f"no verdict within {seconds:g} s on the answer {what}")
    return result
