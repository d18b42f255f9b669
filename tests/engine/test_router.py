"""Lose replicas at any moment, in virtual time: callers see it only in the time and the versions."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl import clock
from arl.engine.base import Load
from arl.engine.replica_seats import Replica
from arl.engine.router import Router
from arl.errors import DeadlineError, EngineError, EngineLost, RunError, TrainerError
from arl.types import Completion, GenerateRequest, Increment, SwapReport, WeightUpdate
from tests.engine.conftest import ask, complete
from tests.examples import examples

STOP = 0


def token_at(seed: int, position: int) -> int:
    """Return what a request with `seed` samples at `position` on any replica: one in 17 stops it."""
    return random.Random(f"{seed} {position}").randrange(17)


def uninterrupted(request: GenerateRequest) -> tuple[int, ...]:
    tokens: list[int] = []
    while len(tokens) < request.sampling.max_new_tokens and not set(request.sampling.stop_token_ids) & set(tokens):
        tokens.append(token_at(request.sampling.seed, len(request.input_ids) + len(tokens)))
    return tuple(tokens)


class Mortal:
    """Generate one token a virtual second, in increments of `interval`, until it dies."""

    def __init__(self, router: Router | None = None, version: int = 0, interval: int = 1, swap: float = 3.0) -> None:
        self._router, self._interval, self._swap = router, interval, swap
        self.loaded_version, self.busy_seconds, self.is_paused = version, 0.0, False
        self.given: list[str] = []
        self.load = Load(0, 0, 100, 0, 10_000)
        self._died, self._running = asyncio.Event(), asyncio.Event()
        self._running.set()
        self._death: RunError = EngineLost("the connection broke")

    def die(self, of: RunError | None = None) -> None:
        self._death = of or self._death
        self._died.set()

    async def _takes(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._died.wait()
        if self._died.is_set():
            raise self._death

    async def _unpaused(self) -> None:
        while not self._running.is_set():
            tasks = [asyncio.create_task(e.wait()) for e in (self._running, self._died)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            if self._died.is_set():
                raise self._death

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        await self._takes(0)
        self.given.append(request.request_id)
        assert self._router is None or self.loaded_version >= self._router.loaded_version
        start, said, versions = len(request.input_ids), list[int](), list[int]()
        for position in itertools.count(start):
            await self._takes(1.0)
            await self._unpaused()
            said.append(token_at(request.sampling.seed, position))
            versions.append(self.loaded_version)
            spent = position + 1 - start == request.sampling.max_new_tokens
            reason = "stop" if said[-1] in request.sampling.stop_token_ids else "length" if spent else None
            if reason or len(said) == self._interval:
                yield Increment(tuple(said), (-1.0,) * len(said), tuple(versions), reason)  # type: ignore[arg-type]
                said, versions = [], []
            if reason:
                return

    async def report(self) -> Load:
        await self._takes(0.05)
        return self.load

    async def pause(self) -> None:
        await self._takes(0.1)
        self.is_paused = True
        self._running.clear()

    async def resume(self) -> None:
        await self._takes(0.1)
        self.is_paused = False
        self._running.set()

    async def update_weights(self, update: WeightUpdate) -> SwapReport:
        self._running.clear()
        await self._takes(self._swap)
        assert update.version >= self.loaded_version
        self.loaded_version = update.version
        if not self.is_paused:
            self._running.set()
        return SwapReport(update.version, self._swap, self._swap)


class World:
    """Requests, swaps and pauses meet a router whose replicas live and die as `rng` says.

    In turns, weights are published at the end of each pause, and whoever paused has the device meanwhile.
    """

    def __init__(self, rng: random.Random, seats: int, lifetime: float, in_turns: bool) -> None:
        self.rng, self.lifetime, self.in_turns = rng, lifetime, in_turns
        self.router = Router([None] * seats, in_turn=rng.random() < 0.5)
        self.oldest = 0
        self.lives: dict[int, Replica | None] = {}  # by seat, until nothing is left of it; None: it is being started
        self.trains = False

    async def run(self, num_requests: int) -> None:
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(self._seat(i)) for i in self.router._seats.numbers]
            if self.in_turns:
                background += [tasks.create_task(self._turns())]
            else:
                background += [tasks.create_task(self._swap()), tasks.create_task(self._pauses())]
            requests = [tasks.create_task(self._ask(i)) for i in range(num_requests)]
            await asyncio.wait(requests)
            for task in background:
                task.cancel()
        assert not self.router._homes
        assert not any(replica.open for replica in self.router._live)

    async def _seat(self, seat: int) -> None:
        """Do what a supervisor does."""
        while True:
            assert not (self.in_turns and self.trains)
            self.lives[seat] = None
            await asyncio.sleep(self.rng.choice([0.0, 5.0]))
            engine = Mortal(self.router, interval=self.rng.choice([1, 2, 5]), swap=self.rng.choice([0.0, 1.0, 4.0]))
            death = asyncio.create_task(self._doom(engine))
            try:
                replica = self.lives[seat] = await self.router.fill(seat, engine)
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
            del self.lives[seat]
            await self.router.may_start(seat)

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
    seats=st.integers(1, 4),
    lifetime=st.sampled_from([6.0, 15.0, 60.0, 1e9]),
    in_turns=st.booleans(),
)
def test_whenever_replicas_are_lost_every_request_gets_the_tokens_of_an_uninterrupted_one(
    seed: int, seats: int, lifetime: float, in_turns: bool
) -> None:
    """In turns, no engine uses the device while the one who paused them does."""
    clock.run(lambda: World(random.Random(seed), seats, lifetime, in_turns).run(num_requests=24), virtual=True)


async def filled(*engines: Mortal) -> tuple[Router, list[Replica]]:
    router = Router([None] * len(engines))
    return router, [await router.fill(i, engine) for i, engine in enumerate(engines)]


async def opened(router: Router, *requests: GenerateRequest) -> list[asyncio.Task[Completion]]:
    tasks = [asyncio.create_task(complete(router, request)) for request in requests]
    await asyncio.sleep(0.5)
    return tasks


def member(group: str, i: int, tokens: int = 20) -> GenerateRequest:
    return GenerateRequest(f"{group}{i}", (1,), ask("", tokens=tokens).sampling, group)


def test_a_group_whose_home_is_lost_finds_one_new_home_together() -> None:
    async def main() -> None:
        engines = [Mortal(), Mortal(), Mortal()]
        router, _ = await filled(*engines)
        tasks = await opened(router, *(member(group, i) for group in "abc" for i in range(2)))
        assert [e.given for e in engines] == [["a0", "a1"], ["b0", "b1"], ["c0", "c1"]]
        engines[1].die()
        await asyncio.sleep(1)
        assert engines[0].given[2:] + engines[2].given[2:] == ["b0", "b1"]
        assert not (engines[0].given[2:] and engines[2].given[2:])
        await asyncio.gather(*tasks)

    clock.run(main, virtual=True)


def test_with_no_replica_left_requests_and_swaps_wait_for_the_next_one_which_begins_with_the_new_weights() -> None:
    async def main() -> None:
        first = Mortal()
        router, (replica,) = await filled(first)
        (task,) = await opened(router, member("a", 0))
        swap = asyncio.create_task(router.update_weights(WeightUpdate(7, "seven")))
        await asyncio.sleep(1)
        first.die()
        await asyncio.sleep(100)
        assert not (task.done() or swap.done())
        assert replica.cut_short == 1
        await router.fill(0, Mortal())
        assert (await swap).seconds > 100
        assert set((await task).policy_versions) <= {0, 7}
        assert router.loaded_version == 7
        assert router.restarts == 1

    clock.run(main, virtual=True)


def test_a_swap_that_loses_one_of_two_succeeds_with_the_other() -> None:
    async def main() -> None:
        engines = [Mortal(swap=5.0), Mortal(swap=5.0)]
        router, _ = await filled(*engines)
        swap = asyncio.create_task(router.update_weights(WeightUpdate(1, "")))
        await asyncio.sleep(1)
        engines[0].die()
        assert (await swap).seconds == 5.0
        late = Mortal()
        await router.fill(0, late)
        assert late.loaded_version == router.loaded_version == 1

    clock.run(main, virtual=True)


def test_one_that_comes_back_while_the_others_are_paused_is_paused() -> None:
    async def main() -> None:
        late = Mortal()
        router, (replica,) = await filled(Mortal())
        await router.pause()
        router.lose(replica, EngineLost("dead"))
        await router.fill(0, late)
        assert late.is_paused
        await router.resume()
        assert not late.is_paused

    clock.run(main, virtual=True)


@pytest.mark.parametrize("ends", ["update", "resume"])
def test_a_seat_is_filled_in_the_engines_turn_which_lasts_until_it_is(ends: str) -> None:
    async def main() -> None:
        router, (replica,) = await filled(Mortal())
        await router.pause()
        router.lose(replica, EngineLost("dead"))
        may_start = asyncio.create_task(router.may_start(0))
        await asyncio.sleep(100)
        assert not may_start.done()
        swap = asyncio.create_task(router.update_weights(WeightUpdate(1, "")) if ends == "update" else router.resume())
        await may_start
        pause = asyncio.create_task(router.pause())
        await asyncio.sleep(100)
        assert not pause.done()
        late = Mortal()
        await router.fill(0, late)
        await asyncio.gather(swap, pause)
        assert late.is_paused

    clock.run(main, virtual=True)


@pytest.mark.parametrize("dies", [True, False])
def test_a_strange_answer_is_a_loss_only_if_the_process_behind_it_turns_out_to_die(dies: bool) -> None:
    async def main() -> None:
        engine, other = Mortal(), Mortal()
        router, (replica, _) = await filled(engine, other)
        (task,) = await opened(router, member("a", 0))
        engine.die(EngineError("garbled"))
        await asyncio.sleep(2)
        if dies:
            router.lose(replica, EngineLost("its process died"))
            assert len((await task).token_ids) == 20
        else:
            with pytest.raises(EngineError, match="garbled"):
                await task

    clock.run(main, virtual=True)


def test_a_swap_that_the_trainer_fails_raises_its_failure_with_the_deadline_behind_it() -> None:
    """What it says of a trainer that hangs depends on that; see arl.run.failures."""

    async def main() -> None:
        engine = Mortal()
        router, _ = await filled(engine, Mortal())
        failed = TrainerError("rank 0 opens no group")
        failed.__cause__ = DeadlineError("controller waited 15 s for rank 0")
        engine.die(failed)
        with pytest.raises(TrainerError) as raised:
            await router.update_weights(WeightUpdate(1))
        assert isinstance(raised.value.__cause__, DeadlineError)

    clock.run(main, virtual=True)


def test_what_is_over_but_for_its_reason_is_not_asked_for_again() -> None:
    """The last token was said, and the engine died before it could say that it was the last."""

    class Forgetful(Mortal):
        async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
            yield Increment((5, 6), (-1.0, -1.0), (0, 0))
            raise EngineLost("gone")

    async def main() -> None:
        for sampling, reason in [({"tokens": 2}, "length"), ({"tokens": 9, "stop_token_ids": (6,)}, "stop")]:
            router, _ = await filled(Forgetful())
            answer = await complete(router, ask("r", **sampling))  # type: ignore[arg-type]
            assert answer == Completion((5, 6), (-1.0, -1.0), (0, 0), reason)  # type: ignore[arg-type]

    clock.run(main, virtual=True)


def test_a_router_that_nobody_refills_raises_the_loss() -> None:
    async def main() -> None:
        engine = Mortal()
        (task,) = await opened(Router([engine]), member("a", 0))
        engine.die()
        with pytest.raises(EngineLost):
            await task

    clock.run(main, virtual=True)


def test_the_loaded_version_stands_when_no_replica_is_left_even_if_nobody_had_asked_for_it() -> None:
    async def main() -> None:
        router, (replica,) = await filled(Mortal(version=5))
        router.lose(replica, EngineLost("dead"))
        assert router.loaded_version == 5

    clock.run(main, virtual=True)


def test_busy_seconds_of_lost_replicas_are_kept() -> None:
    async def main() -> None:
        one, two = Mortal(), Mortal()
        router, (replica, _) = await filled(one, two)
        one.busy_seconds, two.busy_seconds = 6.0, 2.0
        router.lose(replica, EngineLost("dead"))
        assert router.busy_seconds == 4.0
        await router.fill(0, Mortal())
        assert router.busy_seconds == 4.0

    clock.run(main, virtual=True)
