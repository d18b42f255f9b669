"""Run a tracker in a thread of its own, so that it can neither end nor delay the run.

    recorder ─► log, log_samples: a queue ─► thread: make the tracker ─► its log and log_samples, in order ─► its close

A tracker that raises is dropped with one line. So is one that spends more than CALL_SECONDS in one call, or does not
finish within CLOSE_SECONDS at the end. The thread is a daemon: one that hangs does not keep the process from exiting.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeGuard

from arl.metrics.base import SampleTracker, Tracker, TrackerMaker
from arl.metrics.names import Record
from arl.metrics.sampled_episode import SampledEpisode

Call = Callable[[Tracker], None]

CALL_SECONDS = 120.0  # for one call, the first one included, which may have to find out that there is no network
CLOSE_SECONDS = 30.0  # at the end, for all that is left to log, and for `close`


def takes_samples(tracker: object) -> TypeGuard[SampleTracker]:
    """Return whether a tracker, or its class, has the method for episodes."""
    return hasattr(tracker, "log_samples")


class TrackerThread:
    """Log to one tracker without ever blocking or raising.

    Args:
        past: records of a resumed run, which its file keeps.
        note: shows one line to the user; may be called from the thread.
        call_seconds: deadline of one call.
        close_seconds: deadline of the end.
    """

    def __init__(
        self,
        maker: TrackerMaker,
        past: Sequence[Record],
        note: Callable[[str], None],
        call_seconds: float = CALL_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        self._maker = maker
        self._past = past
        self._note = note
        self._call_seconds = call_seconds
        self._close_seconds = close_seconds
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()  # None: the run has ended
        self._busy_since: float | None = time.monotonic()  # start of the call in progress; it is made first
        self._lock = threading.Lock()
        self._dropped = False
        self._thread = threading.Thread(target=self._run, name=f"tracker {maker.name}", daemon=True)
        self._thread.start()

    def log(self, record: Record) -> None:
        """Queue a record, and drop a tracker that hangs."""
        kept = dict(record)
        self._put(lambda tracker: tracker.log(kept))

    def log_samples(self, step: int, samples: Sequence[SampledEpisode]) -> None:
        """Queue episodes, for a tracker that takes them."""

        def show(tracker: Tracker) -> None:
            if takes_samples(tracker):
                tracker.log_samples(step, samples)

        self._put(show)

    def _put(self, call: Call) -> None:
        since = self._busy_since
        if since is not None and time.monotonic() - since > self._call_seconds:
            self._drop(f"one call has taken more than {self._call_seconds:g} s")
        if not self._dropped:
            self._calls.put(call)

    def close(self) -> None:
        """Let the tracker finish, within its deadline."""
        if self._dropped:
            return
        self._calls.put(None)
        self._thread.join(self._close_seconds)
        if self._thread.is_alive():
            self._drop(f"it did not finish within {self._close_seconds:g} s after the end of the run")

    def _run(self) -> None:
        """Make the calls of the tracker, until the run ends or the tracker fails.

        Consumes calls; waits for the queue; unblocked by `log`, `log_samples` and `close`.
        """
        try:
            tracker = self._maker.make(self._past)
            self._past = ()  # the records of a long run take gigabytes
            self._require(tracker)
            self._busy_since = None
            while not self._dropped and (call := self._calls.get()) is not None:
                self._busy_since = time.monotonic()
                call(tracker)
                self._busy_since = None
            tracker.close()
        except BaseException as error:  # a user's code or a service may fail in any way, and even call sys.exit
            self._drop(f"{type(error).__name__}: {error}")

    def _require(self, tracker: Tracker) -> None:
        """Refuse what a factory function returned, if it is no tracker."""
        for method in ("log", "close"):
            if not callable(getattr(tracker, method, None)):
                raise TypeError(f"returned {type(tracker).__name__}, which has no method {method}")

    def _drop(self, why: str) -> None:
        """Log no more to it, and say so once."""
        with self._lock:
            if self._dropped:
                return
            self._dropped = True
        self._note(f"tracker {self._maker.name} is dropped, and the run goes on without it: {why}")
