"""Publish weights in the background, and announce each version when it can be loaded.

snapshot (the only part that blocks training) ─► thread: PublicationTarget.write ─► announce(WeightUpdate)
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable

import msgspec
import torch

from arl.sync.buckets import checksums
from arl.sync.targets import PublicationTarget, State
from arl.sync.version_buffers import VersionBuffers
from arl.types import WeightUpdate

Announce = Callable[[WeightUpdate | Exception], None]
Snapshot = tuple[int, State]  # version, weights


def write_version(
    target: PublicationTarget, version: int, state: State, checked_as: torch.dtype | None
) -> WeightUpdate:
    """Write `state` to `target`, with the checksums that an engine must find.

    Args:
        checked_as: dtype of the engines whose weights are compared; None: no checksums.
    """
    update = target.write(version, state)
    if checked_as is None:
        return update
    return msgspec.structs.replace(update, checksums=checksums(state, checked_as))


class Publisher:
    """Write the newest snapshot in a thread, and announce it from there.

    A snapshot that still waits when a newer one arrives is never written, because engines want the newest. With
    `every_version`, which an exact lag needs, no snapshot is skipped: `publish` blocks while another one waits.

    Args:
        target: where the versions are written.
        kept: number of newest versions that are not discarded. Engines may still load version u while the trainer,
            which the staleness gate stops at u + η + 1, publishes later ones, so η + 2 are always enough. For an
            exact lag see arl.rollout.exact_lag, without a bound Rollout.versions_ahead.
        announce: called in the publishing thread with each WeightUpdate, or with the exception that ended the thread.
        every_version: skip none.
        checked_as: dtype of engines whose weights are compared; None: they are not.
        buffers: hold the snapshots, and may give the memory of one that waits to a newer one. None: each snapshot has
            memory of its own.
    """

    def __init__(
        self,
        target: PublicationTarget,
        kept: int,
        announce: Announce,
        every_version: bool = False,
        checked_as: torch.dtype | None = None,
        buffers: VersionBuffers | None = None,
    ) -> None:
        self._target = target
        self._kept = kept
        self._announce = announce
        self._every_version = every_version
        self._checked_as = checked_as
        self._buffers = buffers
        self._waiting: Snapshot | None = None
        self._is_closing = False
        self._changed = threading.Condition()  # of these two
        self._written: deque[WeightUpdate] = deque()
        self._thread = threading.Thread(target=self._work, name="publisher", daemon=True)
        self._thread.start()

    def publish(self, version: int, state: State) -> None:
        """Take a snapshot, which the caller does not change afterwards, except through `buffers`."""
        with self._changed:
            if self._every_version:  # a publisher that failed has announced it, and the run ends: no deadline here
                self._changed.wait_for(lambda: self._waiting is None)
            self._waiting = (version, state)
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Finish what waits.

        Raises:
            TimeoutError: that takes longer than `seconds`.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"the publisher still writes after {seconds:g} s")

    def _work(self) -> None:
        """Write snapshots. Consumes the one that waits; waits for the next; unblocked by `publish` and `close`."""
        try:
            while self._write_next():
                pass  # no snapshot is held while the next one is waited for
        except Exception as error:
            self._announce(error)
            raise

    def _write_next(self) -> bool:
        """Wait for a snapshot and write it; return False if the publisher was closed instead."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._is_closing)
            snapshot = self._waiting
            self._waiting = None
            self._changed.notify_all()
        if snapshot is not None:
            self._write(*snapshot)
        return snapshot is not None

    def _write(self, version: int, state: State) -> None:
        """Write and announce one version, and discard those beyond `kept`."""
        reading = contextlib.nullcontext(True) if self._buffers is None else self._buffers.reading(version)
        with reading as is_there:
            if not is_there:
                return  # a newer snapshot has taken its memory, and comes next
            update = write_version(self._target, version, state, self._checked_as)
        self._written.append(update)
        self._announce(update)
        while len(self._written) > self._kept:
            self._target.discard(self._written.popleft())
