"""Engines that die at any command of a broadcast cost the others nothing but time."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import EngineError, EngineLost, TrainerError
from arl.sync.buckets import TensorSpec
from arl.sync.group_sender import GroupSender, Rendezvous
from arl.sync.weight_loader import WeightLoader
from arl.types import WeightUpdate
from tests.sync.group_of_fakes import FakeServer, Network

SECONDS = 5.0
COMMANDS = 12  # more than an engine is sent in two versions


class Trainer:
    """Stand for rank 0: what it sends arrives at the servers of a group, unless one of them is dead."""

    def __init__(self, network: Network) -> None:
        self.buckets: Sequence[Sequence[TensorSpec]] = [[TensorSpec(name, "float32", (2,))] for name in "abc"]
        self.sent: list[str] = []
        self.left: list[str] = []
        self.breaks = 0  # sends that fail behind their last bucket
        self._network = network

    async def join(self, group: str, world_size: int) -> Rendezvous:
        self._network.open(group, world_size)
        return Rendezvous("host", 1, "gloo")

    async def send(self, group: str, version: int) -> None:
        self.sent.append(group)
        await self._network.send(group, version, len(self.buckets))
        if len(self.sent) <= self.breaks:
            raise EngineError("rank 0 lost an engine")

    async def leave(self, group: str) -> None:
        self.left.append(group)
        self._network.close(group)


async def swap(sender: GroupSender, loaders: Sequence[WeightLoader], update: WeightUpdate) -> list[Exception | None]:
    """Load `update` as the router and the engines do; return the failure of each."""
    async with sender.together(len(loaders)) as together:

        async def load(loader: WeightLoader) -> Exception | None:
            try:
                await loader.prepare(update)
                await loader.load(update)
            except (EngineError, TrainerError) as error:
                return error
            finally:
                together.leave()
            return None

        return list(await asyncio.gather(*(load(loader) for loader in loaders)))


@given(
    deaths=st.lists(st.none() | st.integers(0, COMMANDS), min_size=1, max_size=4),
    stages=st.booleans(),
    workers=st.integers(1, 2),
)
def test_every_engine_that_lives_ends_with_the_whole_version_and_the_dead_alone_are_lost(
    deaths: list[int | None], stages: bool, workers: int
) -> None:
    async def scenario() -> None:
        network = Network()
        trainer = Trainer(network)
        sender = GroupSender(trainer)
        servers = [FakeServer(network, number, stages, workers, dies) for number, dies in enumerate(deaths)]
        loaders = [WeightLoader(cast(Any, server), sender, workers) for server in servers]
        for version in (1, 2):
            live = [(server, loader) for server, loader in zip(servers, loaders, strict=True) if not server.is_dead]
            update = WeightUpdate(version, transport="broadcast")
            async with asyncio.timeout(SECONDS):
                failures = await swap(sender, [loader for _, loader in live], update)
            for (server, loader), failure in zip(live, failures, strict=True):
                if server.is_dead:
                    assert isinstance(failure, EngineLost) or server.weights == dict.fromkeys("abc", version)
                    await loader.close()
                    continue
                assert failure is None
                assert server.weights == dict.fromkeys("abc", version)
                assert server.version == version
        for loader in loaders:
            await loader.close()
        assert not network.open_groups()

    asyncio.run(scenario())


def test_the_engines_of_a_start_are_sent_their_first_version_in_the_group_in_which_they_met() -> None:
    async def scenario() -> None:
        network = Network()
        trainer = Trainer(network)
        sender = GroupSender(trainer)
        dead = FakeServer(network, 0, stages=True, dies=0)
        servers = [FakeServer(network, number, stages=True) for number in (1, 2)]
        loaders = [WeightLoader(cast(Any, server), sender, 1) for server in (dead, *servers)]
        await sender.meet()
        assert await swap(sender, loaders[1:], WeightUpdate(1, transport="broadcast")) == [None, None]
        assert trainer.sent == network.open_groups()

    asyncio.run(scenario())


@pytest.mark.parametrize("stages", [False, True])
def test_a_version_that_rank_0_could_not_send_is_sent_again_although_every_engine_says_it_has_it(stages: bool) -> None:
    """With NCCL an engine answers before its GPU has received anything."""

    async def scenario() -> None:
        network = Network()
        trainer = Trainer(network)
        sender = GroupSender(trainer)
        loaders = [WeightLoader(cast(Any, FakeServer(network, number, stages)), sender, 1) for number in range(2)]
        trainer.breaks = 1
        assert await swap(sender, loaders, WeightUpdate(1, transport="broadcast")) == [None, None]
        broken, whole = trainer.sent
        assert broken != whole
        trainer.breaks = 4
        failures = await swap(sender, loaders, WeightUpdate(2, transport="broadcast"))
        assert ["rank 0 lost an engine" in str(failure) for failure in failures] == [True, True]
        assert not any(isinstance(failure, EngineLost) for failure in failures)

    asyncio.run(scenario())
