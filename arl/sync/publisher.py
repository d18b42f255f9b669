"""Weight publication: what engines can load, complete the moment it is announced.

snapshot (the only part that blocks training) ─► background thread: an outlet ─► WeightUpdate
"""

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

import msgspec
import torch

from arl.sync.loading import checksums
from arl.sync.targets import Outlet, State
from arl.types import WeightUpdate

Announce = Callable[[WeightUpdate | Exception], None]


def put_out(outlet: Outlet, version: int, state: State, checked_as: torch.dtype | None) -> WeightUpdate:
    """Write `state`, with the checksums that an engine of dtype `checked_as` must find; None: no check."""
    update = outlet.write(version, state)
    if checked_as is None:
        return update
    return msgspec.structs.replace(update, checksums=checksums(state, checked_as))


class Publisher:
    """Writes the newest snapshot, in a thread of its own, and announces it from there.

    A snapshot that is still in line when a newer one arrives is never written: engines want the newest. Those of an
    exact lag want each in its turn: with `every_version` the trainer waits while there is one in line.

    Args:
        outlet: where the versions go.
        kept: versions not discarded. Engines may still load version u while the trainer, whom the staleness gate stops
            at u + η + 1, publishes later ones: η + 2 are always enough. For an exact lag see arl.rollout.exact_lag.
        announce: called in the publishing thread with each WeightUpdate, or with the exception that ended it.
        every_version: none is skipped.
        checked_as: dtype of engines whose weights are compared; None: they are not.
    """

    def __init__(
        self,
        outlet: Outlet,
        kept: int,
        announce: Announce,
        every_version: bool = False,
        checked_as: torch.dtype | None = None,
    ) -> None:
        self._outlet, self._kept, self._announce, self._checked_as = outlet, kept, announce, checked_as
        self._every_version, self._place_in_line = every_version, threading.Semaphore(1)
        self._written: deque[WeightUpdate] = deque()
        self._queue: SimpleQueue[tuple[int, State] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="publisher", daemon=True)
        self._thread.start()

    def publish(self, version: int, state: State) -> None:
        """Put a snapshot in line."""
        if self._every_version:
            self._place_in_line.acquire()  # a publisher that failed has said so: nobody waits for this one then
        self._queue.put((version, state))

    def close(self, seconds: float) -> None:
        """Finish what is queued; raises TimeoutError if that takes longer."""
        self._queue.put(None)
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"the publisher still writes after {seconds:g} s")

    def _work(self) -> None:
        """Consumes snapshots; waits for the next; unblocked by `publish` and `close`."""
        ended = False
        while not ended and (item := self._queue.get()) is not None:
            if self._every_version:
                self._place_in_line.release()
            while not (self._every_version or ended or self._queue.empty()):
                newer = self._queue.get()
                ended, item = newer is None, newer or item
            try:
                self._written.append(put_out(self._outlet, *item, self._checked_as))
                self._announce(self._written[-1])
                while len(self._written) > self._kept:
                    self._outlet.discard(self._written.popleft())
            except Exception as error:
                self._announce(error)
                raise
