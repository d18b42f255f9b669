"""Engines that die at any command of a broadcast cost the others nothing but time."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import EngineError, EngineLost, TrainerError
from arl.sync.buckets import TensorSpec
from arl.sync.group_sender import GroupSender
from arl.sync.weight_loader import WeightLoader
from arl.sync.weight_sender import Rendezvous
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
        self._network = network

    async def join(self, group: str, world_size: int) -> Rendezvous:
        self._network.open(group, world_size)
        return Rendezvous("host", 1, "gloo")

    async def send(self, group: str, version: int) -> None:
        self.sent.append(group)
        await self._network.send(group, version, len(self.buckets))

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
        sender = GroupSender(trainer, SECONDS)
        servers = [FakeServer(network, number, stages, workers, dies) for number, dies in enumerate(deaths)]
        loaders = [WeightLoader(server, sender, workers) for server in servers]
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


def test_a_group_is_made_once_and_used_for_every_version_while_its_engines_live() -> None:
    async def scenario() -> None:
        network = Network()
        trainer = Trainer(network)
        sender = GroupSender(trainer, SECONDS)
        servers = [FakeServer(network, number, stages=True) for number in range(3)]
        loaders = [WeightLoader(server, sender, 1) for server in servers]
        for version in (1, 2, 3):
            await swap(sender, loaders, WeightUpdate(version, transport="broadcast"))
        assert len({*trainer.sent}) == 1
        assert len(trainer.sent) == 3, "rank 0 sends each version once, whatever the number of engines"

    asyncio.run(scenario())


def test_an_engine_that_catches_up_alone_is_part_of_the_common_group_from_the_next_swap_on() -> None:
    async def scenario() -> None:
        network = Network()
        trainer = Trainer(network)
        sender = GroupSender(trainer, SECONDS)
        servers = [FakeServer(network, number, stages=True) for number in range(3)]
        first, second, late = (WeightLoader(server, sender, 1) for server in servers)
        update = WeightUpdate(1, transport="broadcast")
        await swap(sender, [first, second], update)
        await late.prepare(update)
        await late.load(update)
        assert len({*trainer.sent}) == 2
        await swap(sender, [first, second, late], WeightUpdate(2, transport="broadcast"))
        assert len({*trainer.sent}) == 3
        assert trainer.left == trainer.sent[:2], "groups that are of no more use are left"

    asyncio.run(scenario())


def test_a_refusal_is_reported_as_it_is_after_a_second_attempt() -> None:
    async def scenario() -> None:
        network = Network()
        trainer = Trainer(network)
        sender = GroupSender(trainer, SECONDS)
        servers = [FakeServer(network, number, stages=True) for number in range(2)]
        servers[1].refuses = True
        loaders = [WeightLoader(server, sender, 1) for server in servers]
        failures = await swap(sender, loaders, WeightUpdate(1, transport="broadcast"))
        assert "it has no such parameter" in str(failures[1])
        assert not isinstance(failures[1], EngineLost)
        assert len(trainer.sent) == 2

    asyncio.run(scenario())


def test_the_failure_of_the_trainer_is_no_loss_of_an_engine() -> None:
    async def scenario() -> None:
        network = Network()
        trainer = Trainer(network)
        sender = GroupSender(trainer, SECONDS)
        loaders = [WeightLoader(FakeServer(network, number, stages=True), sender, 1) for number in range(2)]

        async def fail(group: str, world_size: int) -> Rendezvous:
            raise TrainerError("rank 0 raised")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer, "join", fail)
            failures = await swap(sender, loaders, WeightUpdate(1, transport="broadcast"))
        assert [type(failure) for failure in failures] == [TrainerError, TrainerError]

    asyncio.run(scenario())
