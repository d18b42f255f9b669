"""Weight publication on virtual time: what arl.sync.publisher does in a thread, one version at a time, the newest next.

snapshot ─► in line (a newer one takes its place, or waits for it) ─► written, `seconds` later complete ─► published
"""

import asyncio
from collections import deque
from collections.abc import Mapping

import torch

from arl.clock import now
from arl.sync.publication_target import PublicationTarget, State
from arl.sync.published_versions import PublishedVersions
from arl.sync.publisher import write_version
from arl.types import WeightUpdate

ROUNDING = 1e-9  # seconds that sums of times may differ by


class Publisher:
    """Has no task of its own: whoever publishes or asks brings it to the present first.

    Args:
        target, kept, every_version, checked_as: as of arl.sync.publisher.Publisher.
        seconds: virtual, from the beginning of a publication until it can be loaded.
        published: version -> directory of what is published already.
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
        self._target, self._kept, self._seconds, self._checked_as = target, kept, seconds, checked_as
        self._published, self._every_version = PublishedVersions(kept, published), every_version
        self._complete = 0.0
        self._in_work: WeightUpdate | None = None
        self._in_line: tuple[int, State] | None = None
        self._written: deque[WeightUpdate] = deque()

    async def publish(self, version: int, state: State) -> None:
        """Put a snapshot in line."""
        self._advance()
        while self._every_version and self._in_line is not None:
            await self._completion()
        self.begin(version, state)

    def begin(self, version: int, state: State) -> None:
        """Put a snapshot in line, in the place of one that waits there."""
        self._in_line = version, state
        if self._in_work is None:
            self._begin(now())

    async def published(self, version: int) -> WeightUpdate:
        """The weights of `version`, which has been put in line, or of the next newer one, once they can be loaded."""
        self._advance()
        while (update := self._published.find(version)) is None:
            await self._completion()
        return update

    async def _completion(self) -> None:
        await asyncio.sleep(self._complete - now())
        self._advance()

    def _advance(self) -> None:
        while self._in_work is not None and self._complete <= now() + ROUNDING:
            self._published.add(self._in_work)
            self._in_work = None
            if self._in_line is not None:
                self._begin(self._complete)

    def _begin(self, at: float) -> None:
        assert self._in_line is not None
        (version, state), self._in_line = self._in_line, None
        self._in_work = write_version(self._target, version, state, self._checked_as)
        self._complete = at + self._seconds
        self._written.append(self._in_work)
        while len(self._written) > self._kept:
            self._target.discard(self._written.popleft())
