"""Run a tracker in a thread of its own, so that it can neither end nor delay the run.

    recorder ─► log: a queue ─► thread: make the tracker ─► tracker.log, record after record ─► tracker.close

A tracker that raises is dropped with one line. So is one that spends more than CALL_SECONDS in one call, or does not
finish within CLOSE_SECONDS at the end. The thread is a daemon: one that hangs does not keep the process from exiting.
"""

import queue
import threading
import time
from collections.abc import Callable

from arl.metrics.base import Tracker, TrackerMaker
from arl.metrics.names import Record

CALL_SECONDS = 120.0  # for one call, the first one included, which may have to find out that there is no network
CLOSE_SECONDS = 30.0  # at the end, for all that is left to log, and for `close`


class TrackerThread:
    """Log to one tracker without ever blocking or raising.

    Args:
        note: shows one line to the user; may be called from the thread.
        call_seconds: deadline of one call.
        close_seconds: deadline of the end.
    """

    def __init__(
        self,
        maker: TrackerMaker,
        note: Callable[[str], None],
        call_seconds: float = CALL_SECONDS,
        close_seconds: float = CLOSE_SECONDS,
    ) -> None:
        self._maker = maker
        self._note = note
        self._call_seconds = call_seconds
        self._close_seconds = close_seconds
        self._records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()  # None: the run has ended
        self._busy_since: float | None = time.monotonic()  # start of the call in progress; it is made first
        self._lock = threading.Lock()
        self._dropped = False
        self._thread = threading.Thread(target=self._run, name=f"tracker {maker.name}", daemon=True)
        self._thread.start()

    def log(self, record: Record) -> None:
        """Queue a record, and drop a tracker that hangs."""
        since = self._busy_since
        if since is not None and time.monotonic() - since > self._call_seconds:
            self._drop(f"one call has taken more than {self._call_seconds:g} s")
        if not self._dropped:
            self._records.put(dict(record))

    def close(self) -> None:
        """Let the tracker finish, within its deadline."""
        if self._dropped:
            return
        self._records.put(None)
        self._thread.join(self._close_seconds)
        if self._thread.is_alive():
            self._drop(f"it did not finish within {self._close_seconds:g} s after the end of the run")

    def _run(self) -> None:
        """Pass records on to the tracker, until the run ends or the tracker fails.

        Consumes records; waits for the queue; unblocked by `log` and `close`.
        """
        try:
            tracker = self._maker.make()
            self._require(tracker)
            self._busy_since = None
            while not self._dropped and (record := self._records.get()) is not None:
                self._busy_since = time.monotonic()
                tracker.log(record)
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
