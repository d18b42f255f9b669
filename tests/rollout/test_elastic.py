"""Engines join, leave and are lost at any moment of a run in virtual time: it trains the same, from tokens as fresh."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from arl.engine.router import Router
from arl.errors import EngineLost
from arl.types import FAILED, FAILED_REQUEUED, GenerateRequest, Increment, SwapReport, WeightUpdate
from tests.examples import examples
from tests.fakes import NullEngine
from tests.rollout.controller_world import World, rules, scheduled, schedules

LAST_CHANGE = 3000.0  # virtual seconds: then the engines stay, so that every run ends
MOST = 5  # engines
CHANGES = ["join", "join", "remove", "die", "die and be noticed", "leave in mid-join"]


class Leaving(NullEngine):
    """Is a NullEngine whose connection breaks when it has gone."""

    def __init__(self, world: World, swap_seconds: float, version: int) -> None:
        super().__init__(world.length_of, swap_seconds, world.seconds_of, version)
        self._world = world
        self.gone = asyncio.Event()

    async def _pass(self, seconds: float) -> None:
        """Pass `seconds`, or raise EngineLost as soon as it has gone."""
        try:
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        except TimeoutError:
            return
        raise EngineLost("the connection broke")

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        await self._pass(0.0)
        assert self.loaded_version >= self._world.engine.loaded_version, "a request for an engine that is behind"
        async for increment in super().generate(request):
            await self._pass(0.0)
            yield increment

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        await self._pass(self.swap_seconds)
        assert update.version > self.loaded_version
        self.loaded_version = update.version
        return SwapReport(update.version, self.swap_seconds, self.swap_seconds)


class Changes:
    """Add engines to the router of `world`, remove them and lose them, as `seed` says. One at least lives or joins."""

    def __init__(self, world: World, seed: int, pace: float) -> None:
        self._world = world
        self._rng = random.Random(seed)
        self._pace = pace  # virtual seconds between two changes, on average
        world.make_router = self._open
        world.beside = self._run

    def _open(self, served: int) -> Router:
        self._served = served
        self._engines = dict(enumerate(self._make() for _ in range(self._world.replicas)))  # by slot
        self._joining: dict[int, asyncio.Task[None]] = {}  # by slot
        router = Router([*self._engines.values(), None])
        router.close_slot(self._world.replicas, EngineLost("nobody ever had it"))
        return router

    def _make(self) -> Leaving:
        swap = self._world.swap_seconds * self._rng.choice([0.5, 1.0, 2.0])
        return Leaving(self._world, swap, self._served)

    async def _run(self) -> None:
        router = self._world.engine
        oldest = router.loaded_version
        async with asyncio.TaskGroup() as tasks:
            for _ in range(int(LAST_CHANGE / self._pace)):
                await asyncio.sleep(self._rng.expovariate(1 / self._pace))
                for slot in [slot for slot in self._engines if router.replica(slot) is None]:
                    router.close_slot(slot, EngineLost("it is gone for good"))
                    del self._engines[slot]
                self._change(self._rng.choice(CHANGES), tasks)
                assert router.loaded_version >= oldest, "loaded_version decreased"
                oldest = router.loaded_version

    def _change(self, change: str, tasks: asyncio.TaskGroup) -> None:
        living = [slot for slot, engine in self._engines.items() if not engine.gone.is_set()]
        count = len(living) + len(self._joining)
        if change == "join":
            if count < MOST:
                slot = self._world.engine.open_slot()
                self._joining[slot] = tasks.create_task(self._join(slot))
        elif change == "leave in mid-join":
            if living and self._joining:
                self._joining.popitem()[1].cancel()
        elif count > 1 and living:
            self._end(self._rng.choice(living), change)

    async def _join(self, slot: int) -> None:
        engine = self._make()
        try:
            await asyncio.sleep(self._rng.choice([0.0, 3.0]))
            await self._world.engine.fill(slot, engine)
        except asyncio.CancelledError:
            self._world.engine.close_slot(slot, EngineLost("it left before it had joined"))
            return
        self._engines[slot] = engine
        self._joining.pop(slot, None)

    def _end(self, slot: int, how: str) -> None:
        router = self._world.engine
        replica = router.replica(slot)
        self._engines[slot].gone.set()  # if it is not noticed, the next request finds out, or the next swap
        if how == "remove":
            router.close_slot(slot, EngineLost("it was removed"))
            del self._engines[slot]
        elif how == "die and be noticed" and replica is not None:
            router.lose(replica, EngineLost("it died"))


@given(schedules, st.integers(0, 2**32), st.sampled_from([0.5, 2.0, 10.0, 60.0]))
@examples(1)
def test_whichever_engines_come_and_go_the_bound_holds_and_no_request_is_lost(
    s: dict[str, Any], seed: int, pace: float
) -> None:
    rollout = rules(s)
    world = scheduled(s, rollout, 6, checkpoint_every=s["checkpoint_every"], crash_at=s["crash_at"])
    Changes(world, seed, pace)
    world.run()
    world.check_accounts()
    for batch in world.trainer.batches:
        for trajectory in [trajectory for group in batch.groups for trajectory in group.trajectories]:
            tokens = trajectory.token_ids[trajectory.loss_mask].tolist()
            assert tokens == list(range(len(tokens))), "every token of a response, each once"
    assert max(world.ages()) <= rollout.max_age
    assert max(world.trainer.versions_ahead) <= rollout.versions_ahead
    assert [len(batch.groups) for batch in world.trainer.batches] == [s["problems"]] * 6
    lost = world.controller.ledger.lost
    assert bool(lost[FAILED] + lost[FAILED_REQUEUED]) <= bool(s["fail_one_in"])
