"""Run a tracker in a thread of its own, so that it can neither end nor delay the run.

    recorder ─► log, log_samples: a queue ─► thread: make the tracker ─► its log and log_samples, in order ─► its close

A tracker that raises is dropped with one line. So is one that does not finish within CLOSE_SECONDS at the end. The
thread is a daemon: one that hangs does not keep the process from exiting.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeGuard

from arl.metrics.base import SampleTracker, Tracker, TrackerMaker
from arl.metrics.names import Record
from arl.metrics.sampled_episode import SampledEpisode

CLOSE_SECONDS = 30.0  # at the end, for all that is left to log, and for `close`
MAX_CALLS = 1_000  # that wait for a tracker; one that hangs must not fill the memory


def takes_samples(tracker: object) -> TypeGuard[SampleTracker]:
    """Return whether a tracker, or its class, has the method for episodes."""
    return hasattr(tracker, "log_samples")


class TrackerThread:
    """Log to one tracker without ever blocking or raising.

    Args:
        past: records of a resumed run, which its file keeps.
        note: shows one line to the user; may be called from the thread.
    """

    def __init__(self, maker: TrackerMaker, past: Sequence[Record], note: Callable[[str], None]) -> None:
        self._maker = maker
        self._past = past
        self._note = note
        self._calls: queue.Queue[Callable[[Tracker], None] | None] = queue.Queue(MAX_CALLS)  # None: the run has ended
        self._dropped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tracker {maker.name}", daemon=True)
        self._thread.start()

    def log(self, record: Record) -> None:
        """Queue a record."""
        kept = dict(record)
        self._put(lambda tracker: tracker.log(kept))

    def log_samples(self, step: int, samples: Sequence[SampledEpisode]) -> None:
        """Queue episodes, for a tracker that takes them."""
        self._put(lambda tracker: tracker.log_samples(step, samples) if takes_samples(tracker) else None)

    def close(self) -> None:
        """Let the tracker finish, within its deadline."""
        self._put(None)
        if not self._dropped.is_set():
            self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._drop(f"it did not finish within {CLOSE_SECONDS:g} s after the end of the run")

    def _put(self, call: Callable[[Tracker], None] | None) -> None:
        if self._dropped.is_set():
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._drop(f"it hangs, and {MAX_CALLS} calls wait for it")

    def _run(self) -> None:
        """Make the calls of the tracker, until the run ends or the tracker fails.

        Consumes calls; waits for the queue; unblocked by `log`, `log_samples` and `close`.
        """
        try:
            tracker = self._maker.make(self._past)
            self._past = ()  # the records of a long run take gigabytes
            while not self._dropped.is_set() and (call := self._calls.get()) is not None:
                call(tracker)
            tracker.close()
        except BaseException as error:  # a user's code or a service may fail in any way, and even call sys.exit
            self._drop(f"{type(error).__name__}: {error}")

    def _drop(self, why: str) -> None:
        """Log no more to it, and say so once."""
        if not self._dropped.is_set():
            self._dropped.set()
            self._note(f"tracker {self._maker.name} is dropped, and the run goes on without it: {why}")
