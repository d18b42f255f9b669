"""Publish in virtual time: the newest snapshot that waits is written, and no wait is without an end."""

from arl import clock
from arl.sync.targets import State
from arl.sync.virtual_publisher import VirtualPublisher
from arl.types import WeightUpdate

SECONDS = 10.0


class Target:
    """Remember which versions were written and discarded."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.discarded: list[int] = []

    def write(self, version: int, state: State) -> WeightUpdate:
        self.written.append(version)
        return WeightUpdate(version, f"v{version}")

    def discard(self, update: WeightUpdate) -> None:
        self.discarded.append(update.version)


def test_when_every_version_counts_a_snapshot_waits_for_the_one_before_it() -> None:
    target = Target()

    async def scenario() -> float:
        publisher = VirtualPublisher(target, kept=2, seconds=SECONDS, published={0: "model"}, every_version=True)
        for version in (1, 2, 3):
            await publisher.publish(version, {})
        await publisher.published(3)
        return clock.now()

    assert clock.run(scenario, virtual=True) == 3 * SECONDS
    assert target.written == [1, 2, 3]
    assert target.discarded == [1]
