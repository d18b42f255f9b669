"""With sync.order in_turn one engine loads after the other, and the others generate meanwhile."""

import asyncio

from arl import clock
from arl.engine.router import Router
from arl.types import WeightUpdate
from tests.engine.mortal import Mortal, member, opened

LOAD = 3.0  # virtual seconds that each engine takes; a token takes one


def test_the_others_generate_meanwhile_and_the_version_counts_when_the_last_engine_has_it() -> None:
    async def main() -> None:
        engines = [Mortal(swap=LOAD) for _ in range(3)]
        router = Router([None] * 3, in_turn=True)
        for seat, engine in enumerate(engines):
            await router.fill(seat, engine)
        tasks = await opened(router, *(member(group, 0, tokens=14) for group in "abc"))
        swap = asyncio.create_task(router.update_weights(WeightUpdate(1, "v1")))
        loaded = []
        for _ in range(3):
            await asyncio.sleep(LOAD + 0.01)
            loaded.append((router.loaded_version, [engine.loaded_version for engine in engines]))
        report = await swap
        assert loaded == [(0, [1, 0, 0]), (0, [1, 1, 0]), (1, [1, 1, 1])]
        assert (report.pause_seconds, report.seconds) == (LOAD, 3 * LOAD)
        firsts = [(await task).policy_versions.index(1) for task in tasks]
        assert firsts == sorted(firsts)
        assert firsts[0] < firsts[1] < firsts[2], "each went on under the old version until its turn"

    clock.run(main, virtual=True)
