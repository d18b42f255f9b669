"""A router sends a request where there is room for it, and finds it another engine when one is lost."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl import clock
from arl.engine.base import Load
from arl.engine.router import REPORT_SECONDS
from arl.errors import DeadlineError, EngineError, EngineLost, TrainerError
from arl.types import Completion, GenerateRequest, Increment, WeightUpdate
from tests.engine.conftest import ask, complete
from tests.engine.mortal import Mortal, filled, member, opened


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


def homes(engines: list[Mortal], group: str) -> list[int]:
    return [i for i, engine in enumerate(engines) if any(name.startswith(group) for name in engine.given)]


@given(seed=st.integers(0, 2**32), replicas=st.integers(2, 5))
def test_a_group_goes_to_the_live_replica_with_the_most_free_capacity_and_stays_there(seed: int, replicas: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        engines = [Mortal() for _ in range(replicas)]
        router, lives = await filled(*engines)
        for group in "abcdef":
            await asyncio.sleep(2 * REPORT_SECONDS)  # what was reported is old by now
            live = [i for i, life in enumerate(lives) if not life.lost.is_set()]
            if rng.random() < 0.2 and len(live) > 1:
                lost = live.pop()
                engines[lost].die()
                router.lose(lives[lost], EngineLost("it was lost"))
            for i in live:
                engines[i].load = Load(rng.randrange(20), 0, 20, rng.randrange(2000), 2000)
            free = {i: engines[i].load.free(0, 0) for i in live}
            calls = await opened(router, *(member(group, i) for i in range(4)))
            (home,) = set(homes(engines, group)) & set(live)
            assert free[home] == max(free.values())
            calls += await opened(router, member(group, 4), member(group, 5))
            assert set(homes(engines, group)) & set(live) == {home}, "affinity"
            await asyncio.gather(*calls)

    clock.run(main, virtual=True)
