"""Whenever engines are lost, swapped and paused, every request gets the tokens of an uninterrupted one."""

import asyncio
import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from arl import clock
from arl.engine.router import Replica, Router
from arl.errors import DeadlineError, EngineLost
from arl.types import GenerateRequest, WeightUpdate
from tests.engine.conftest import ask, complete
from tests.engine.mortal import STOP, Mortal, uninterrupted
from tests.examples import examples


class World:
    """Requests, swaps and pauses meet a router whose replicas live and die as `rng` says.

    In turns, weights are published at the end of each pause, and whoever paused has the device meanwhile.
    """

    def __init__(self, rng: random.Random, slots: int, lifetime: float, in_turns: bool) -> None:
        self.rng, self.lifetime, self.in_turns = rng, lifetime, in_turns
        self.slots = slots
        self.router = Router([None] * slots)
        self.oldest = 0
        self.lives: dict[int, Replica | None] = {}  # by slot, until nothing is left of it; None: it is being started
        self.trains = False

    async def run(self, num_requests: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(self._slot(i)) for i in range(self.slots)]
            if self.in_turns:
                background += [tasks.create_task(self._turns())]
            else:
                background += [tasks.create_task(self._swap()), tasks.create_task(self._pauses())]
            requests = [tasks.create_task(self._ask(i)) for i in range(num_requests)]
            await asyncio.wait(requests)
            for task in background:
                task.cancel()
        assert not any(replica.open or replica.groups for replica in self.router._live)

    async def _slot(self, slot: int) -> None:
        """Do what a supervisor does."""
        while True:
            assert not (self.in_turns and self.trains)
            self.lives[slot] = None
            await asyncio.sleep(self.rng.choice([0.0, 5.0]))
            engine = Mortal(self.router, interval=self.rng.choice([1, 2, 5]), swap=self.rng.choice([0.0, 1.0, 4.0]))
            death = asyncio.create_task(self._doom(engine))
            try:
                replica = self.lives[slot] = await self.router.fill(slot, engine)
                assert engine.is_paused == self.router._paused
                await death
                if self.rng.random() < 0.5:  # it is told before anybody notices, or somebody notices first
                    self.router.lose(replica, EngineLost("told"))
                await replica.lost.wait()
            except (EngineLost, DeadlineError):
                pass  # in the middle of being filled
            finally:
                death.cancel()
            self._check()
            await asyncio.sleep(self.rng.choice([0.0, 1.0, 20.0]))  # until nothing is left of it
            del self.lives[slot]
            await self.router.may_start(slot)

    async def _doom(self, engine: Mortal) -> None:
        await asyncio.sleep(self.rng.expovariate(1 / self.lifetime))
        engine.die(DeadlineError("silent") if self.rng.random() < 0.3 else None)
        await asyncio.sleep(self.rng.choice([0.0, 1.0]))

    async def _swap(self) -> None:
        for version in itertools.count(1):
            await asyncio.sleep(self.rng.choice([0.0, 5.0, 30.0]))
            self._check()
            report = await self.router.update_weights(WeightUpdate(version, ""))
            assert report.version == version
            assert self.router.loaded_version == version
            self._check()

    async def _pauses(self) -> None:
        while True:
            await asyncio.sleep(self.rng.choice([1.0, 40.0]))
            await self.router.pause()
            await asyncio.sleep(self.rng.choice([0.0, 4.0]))
            await self.router.resume()

    async def _turns(self) -> None:
        for version in itertools.count(1):
            await asyncio.sleep(self.rng.choice([1.0, 40.0]))
            await self.router.pause()
            self.trains = True
            assert all(life is not None and not life.lost.is_set() for life in self.lives.values())
            await asyncio.sleep(self.rng.choice([0.0, 4.0, 50.0]))
            self.trains = False
            await self.router.update_weights(WeightUpdate(version, ""))
            assert self.router.loaded_version == version
            await self.router.resume()

    def _check(self) -> None:
        assert self.router.loaded_version >= self.oldest, "loaded_version decreased"
        self.oldest = self.router.loaded_version

    async def _ask(self, i: int) -> None:
        await asyncio.sleep(self.rng.uniform(0, 60))
        stops = (STOP,) if self.rng.random() < 0.5 else ()
        sampling = ask("", tokens=self.rng.randrange(1, 40), seed=i, stop_token_ids=stops).sampling
        request = GenerateRequest(f"r{i}", tuple(range(1, self.rng.randrange(2, 9))), sampling, f"group {i // 4}")
        dispatched = self.router.loaded_version
        self._check()
        answer = await complete(self.router, request)
        self._check()
        expected = uninterrupted(request)
        assert answer.token_ids == expected
        assert answer.finish_reason == ("stop" if stops and STOP in expected else "length")
        assert len(answer.logprobs) == len(answer.policy_versions) == len(expected)
        assert dispatched <= min(answer.policy_versions)
        assert max(answer.policy_versions) <= self.router.loaded_version + 1


@examples(1)
@given(
    seed=st.integers(0, 2**32),
    slots=st.integers(1, 4),
    lifetime=st.sampled_from([6.0, 15.0, 60.0, 1e9]),
    in_turns=st.booleans(),
)
def test_whenever_replicas_are_lost_every_request_gets_the_tokens_of_an_uninterrupted_one(
    seed: int, slots: int, lifetime: float, in_turns: bool
) -> None:
    """In turns, no engine uses the device while the one who paused them does."""
    clock.run(lambda: World(random.Random(seed), slots, lifetime, in_turns).run(num_requests=24), virtual=True)
