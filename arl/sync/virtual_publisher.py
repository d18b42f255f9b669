"""Publish weights in virtual time: what arl.sync.publisher does in a thread, one version at a time.

snapshot ─► waiting (a newer one replaces it, or waits for it) ─► being written ─► `seconds` later: published
"""

import asyncio
from collections import deque
from collections.abc import Mapping

import torch

from arl.clock import now
from arl.metrics.spans import add_span
from arl.sync.publication_directory import PublishedVersions
from arl.sync.publisher import write_version
from arl.sync.targets import PublicationTarget, State
from arl.types import WeightUpdate

ROUNDING = 1e-9  # seconds by which sums of times may differ


class VirtualPublisher:
    """Publish snapshots, each `seconds` after its writing began.

    It has no task of its own. Each call first does what is due by now.

    Args:
        target, kept, every_version, checked_as: as of arl.sync.publisher.Publisher.
        seconds: virtual, from the beginning of a publication until engines can load it.
        published: version -> directory of the versions that are published already.
    """

    def __init__(
        self,
        target: PublicationTarget,
        kept: int,
        seconds: float,
        published: Mapping[int, str],
        every_version: bool = False,
        checked_as: torch.dtype | None = None,
    ) -> None:
        self._target = target
        self._kept = kept
        self._seconds = seconds
        self._checked_as = checked_as
        self._every_version = every_version
        self._published = PublishedVersions(kept, published)
        self._in_work: WeightUpdate | None = None
        self._complete_at = 0.0  # clock seconds, of what is in work
        self._waiting: tuple[int, State] | None = None
        self._written: deque[WeightUpdate] = deque()

    async def publish(self, version: int, state: State) -> None:
        """Take a snapshot. With `every_version`, first waits until no other one is waiting."""
        self._advance()
        while self._every_version and self._waiting is not None:
            await self._completion()
        self.begin(version, state)

    def begin(self, version: int, state: State) -> None:
        """Take a snapshot, in the place of one that is waiting."""
        self._waiting = (version, state)
        if self._in_work is None:
            self._write_waiting(now())

    async def published(self, version: int) -> WeightUpdate:
        """Wait until engines can load `version`, which was given to `publish`, or else the next newer one."""
        self._advance()
        update = self._published.find(version)
        while update is None:
            await self._completion()
            update = self._published.find(version)
        return update

    async def _completion(self) -> None:
        """Wait until the publication in work is complete."""
        assert self._in_work is not None, "nothing is being published, so nothing would ever end this wait"
        await asyncio.sleep(self._complete_at - now())
        self._advance()

    def _advance(self) -> None:
        """Publish what is complete by now, and begin what was waiting at that time."""
        while self._in_work is not None and self._complete_at <= now() + ROUNDING:
            self._published.add(self._in_work)
            self._in_work = None
            if self._waiting is not None:
                self._write_waiting(self._complete_at)

    def _write_waiting(self, at: float) -> None:
        """Begin the publication of the snapshot that waits, at clock time `at`."""
        assert self._waiting is not None
        version, state = self._waiting
        self._waiting = None
        update = write_version(self._target, version, state, self._checked_as)
        self._in_work = update
        self._complete_at = at + self._seconds
        add_span("trainer", "publication", f"publication of version {version}", at, self._complete_at)
        self._written.append(update)
        while len(self._written) > self._kept:
            self._target.discard(self._written.popleft())
