"""Check to which replica a request goes, in virtual time."""

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from arl import clock
from arl.engine.base import Load
from arl.engine.router import REPORT_SECONDS
from arl.errors import EngineLost
from tests.engine.mortal import Mortal, filled, member, opened


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
