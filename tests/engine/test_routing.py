"""Check to which replica a request goes, in virtual time."""

import asyncio
import random
from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from arl import clock
from arl.engine.base import Load
from arl.engine.router import REPORT_SECONDS, Router
from arl.errors import EngineLost
from arl.types import GenerateRequest, Increment, SamplingParams, SwapReport, WeightUpdate

SLOTS, CAPACITY = 20, 2000


class Loaded:
    """Represent a replica that has other work as well, and remembers what it was given."""

    def __init__(self, rng: random.Random) -> None:
        self.loaded_version, self.busy_seconds = 0, 0.0
        self.others, self.their_tokens = rng.randrange(SLOTS), rng.randrange(CAPACITY)
        self.given: list[str] = []
        self.reports: list[float] = []
        self._open: dict[str, tuple[int, asyncio.Event]] = {}
        self._rng = rng

    def load(self) -> Load:
        tokens = self.their_tokens + sum(count for count, _ in self._open.values())
        return Load(self.others, len(self._open), SLOTS, tokens, CAPACITY)

    @property
    def free(self) -> float:
        return self.load().free(0, 0)

    async def report(self) -> Load:
        await asyncio.sleep(self._rng.choice([0.0, 0.01]))
        self.reports.append(clock.now())
        return self.load()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        over = asyncio.Event()
        self._open[request.request_id] = len(request.input_ids), over
        self.given.append(request.request_id)
        try:
            await over.wait()
            yield Increment((1,), (-1.0,), (0,), "stop")
        finally:
            del self._open[request.request_id]

    def end(self) -> None:
        """End all that it was given, and draw new work of others."""
        for _, over in self._open.values():
            over.set()
        self.others, self.their_tokens = self._rng.randrange(SLOTS), self._rng.randrange(CAPACITY)

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        raise AssertionError("these replicas are never given weights")


class World:
    def __init__(self, rng: random.Random, replicas: int) -> None:
        self.rng = rng
        self.replicas = [Loaded(rng) for _ in range(replicas)]
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        self.router = Router([None] * len(self.replicas))
        self.lives = [await self.router.fill(i, replica) for i, replica in enumerate(self.replicas)]

    async def ask(self, group: str, members: int, tokens: int) -> set[int]:
        """Send the members of a group, and return the replicas that got them."""
        for i in range(members):
            name = f"{group}.{i}.{len(self.tasks)}"
            request = GenerateRequest(name, (1,) * tokens, SamplingParams(1, stop_token_ids=(1,)), group)
            self.tasks.append(asyncio.create_task(self._complete(request)))
        await asyncio.sleep(0.1)
        prefix = f"{group}."
        return {i for i, r in enumerate(self.replicas) if any(name.startswith(prefix) for name in r.given)}

    async def _complete(self, request: GenerateRequest) -> None:
        async for _ in self.router.generate(request):
            pass

    async def close(self) -> None:
        for replica in self.replicas:
            replica.end()
        await asyncio.gather(*self.tasks)

    def lose(self, index: int) -> None:
        self.router.lose(self.lives[index], EngineLost("it was lost"))

    @property
    def live(self) -> list[int]:
        return [i for i, life in enumerate(self.lives) if not life.lost.is_set()]


seeds = st.integers(0, 2**32)


@given(seed=seeds, replicas=st.integers(2, 5))
def test_a_group_goes_to_the_live_replica_with_the_most_free_capacity_and_stays_there(seed: int, replicas: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        world = World(rng, replicas)
        await world.open()
        for group in range(8):
            await asyncio.sleep(2 * REPORT_SECONDS)  # what was reported is old by now
            if rng.random() < 0.2 and len(world.live) > 1:
                world.lose(rng.choice(world.live))
            free = {i: world.replicas[i].free for i in world.live}
            homes = await world.ask(f"g{group}", rng.randrange(1, 5), rng.randrange(1, 200))
            (home,) = homes
            assert free[home] == max(free.values())
            assert await world.ask(f"g{group}", rng.randrange(1, 5), 10) == homes, "affinity"
            if rng.random() < 0.3:
                for replica in world.replicas:
                    replica.end()
        await world.close()

    clock.run(main, virtual=True)


def test_groups_that_arrive_together_share_one_question_and_are_spread() -> None:
    async def main() -> None:
        world = World(random.Random(0), 4)
        for replica in world.replicas:
            replica.others = replica.their_tokens = 0
        await world.open()
        await asyncio.gather(*(world.ask(f"g{group}", 4, 10) for group in range(16)))
        assert [len(replica.given) for replica in world.replicas] == [16] * 4
        assert [len(replica.reports) for replica in world.replicas] == [1] * 4
        await world.close()

    clock.run(main, virtual=True)
