"""Hold the versions that rank 0 has announced, and give each to whoever waits for it. Torch-free.

begin(5) ─► a step makes version 5, which may be announced from now on ─► made(5): every rank has made it
                                                  rank 0's publisher: add(update) ─► at_least(4), at_least(5)
"""

import asyncio
from collections.abc import Callable, Mapping

from msgspec import structs

from arl.clock import now
from arl.metrics.spans import add_span
from arl.sync.published_versions import PublishedVersions
from arl.train.waits import Waits, set_if_waiting
from arl.types import WeightUpdate


class AnnouncedVersions:
    """Hold what can be loaded, and who waits for more.

    Args:
        version: the newest that is published already.
        known: version -> directory of what is published already.
        kept: published versions that are remembered.
        waits: end with the failure of the trainer.
        update_of: returns what is announced of a version, without its checksums.
    """

    def __init__(
        self,
        version: int,
        known: Mapping[int, str],
        kept: int,
        waits: Waits,
        update_of: Callable[[int], WeightUpdate],
    ) -> None:
        self._published = PublishedVersions(kept, known)
        self._newest = version  # that is published
        self._last_begun = version  # newest that a step makes or has made
        self._made_at: dict[int, float] = {}  # version that is not published yet -> clock seconds
        self._wanted: dict[int, asyncio.Future[WeightUpdate]] = {}  # by version
        self._waits = waits
        self._update_of = update_of

    def begin(self, version: int) -> None:
        """Note that a step begins that makes `version`. It may be announced before the last rank has answered."""
        self._last_begun = version

    def made(self, version: int) -> None:
        """Note that every rank has made `version`."""
        self._made_at[version] = now()

    def add(self, update: WeightUpdate) -> None:
        """Give a version to everybody who waits for it or for an older one, which is skipped.

        Raises:
            TypeError: no step has made such a version since the one that was published last, or it is elsewhere than
                this run publishes it.
        """
        version = update.version
        if not self._newest < version <= self._last_begun:
            due = f"only versions from {self._newest + 1} to {self._last_begun} can be published now"
            raise TypeError(f"Published of version {version}; {due}")
        expected = structs.replace(self._update_of(version), checksums=update.checksums)
        if update != expected:
            found = f"at {update.path!r} by {update.transport}"
            due = f"this run publishes it at {expected.path!r} by {expected.transport}"
            raise TypeError(f"Published of version {version} {found}; {due}")
        self._newest = version
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
