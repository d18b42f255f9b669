"""Hold the versions that rank 0 has announced, and give each to whoever waits for it. Torch-free.

made(5): every rank has made it; rank 0's publisher: add(update) ─► at_least(4), at_least(5)
"""

import asyncio
from collections.abc import Mapping

from arl.clock import now
from arl.metrics.spans import add_span
from arl.sync.publication_directory import PublishedVersions
from arl.train.waits import Waits, set_if_waiting
from arl.types import WeightUpdate


class AnnouncedVersions:
    """Hold what can be loaded, and who waits for more.

    Args:
        known: version -> directory of what is published already.
        kept: published versions that are remembered.
        waits: end with the failure of the trainer.
    """

    def __init__(self, known: Mapping[int, str], kept: int, waits: Waits) -> None:
        self._published = PublishedVersions(kept, known)
        self._made_at: dict[int, float] = {}  # version that is not published yet -> clock seconds
        self._wanted: dict[int, asyncio.Future[WeightUpdate]] = {}  # by version
        self._waits = waits

    def made(self, version: int) -> None:
        """Note that every rank has made `version`."""
        self._made_at[version] = now()

    def add(self, update: WeightUpdate) -> None:
        """Give a version to everybody who waits for it or for an older one, which is skipped."""
        version = update.version
        self._published.add(update)
        begun = self._made_at.get(version, now())
        self._made_at = {made: at for made, at in self._made_at.items() if made > version}
        add_span("trainer", "publication", f"publication of version {version}", begun, now())
        satisfied = [wanted for wanted in self._wanted if wanted <= version]
        for wanted in satisfied:
            set_if_waiting(self._wanted.pop(wanted), update)

    async def at_least(self, version: int) -> WeightUpdate:
        """Wait until `version` or a newer one is published.

        Raises:
            RunError: the trainer has failed.
        """
        self._waits.check()
        update = self._published.find(version)
        if update is not None:
            return update
        if version not in self._wanted:
            self._wanted[version] = self._waits.new()
        return await asyncio.shield(self._wanted[version])
