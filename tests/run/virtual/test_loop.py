"""The virtual loop itself."""

import asyncio

import pytest

from arl import clock
from arl.errors import DeadlineError


def test_a_cancelled_group_ends_its_tasks_in_the_order_they_were_made() -> None:
    ended = []

    async def task(number: int) -> None:
        try:
            await asyncio.sleep(1000.0)
        finally:
            ended.append(number)

    async def everybody() -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(50):
                tasks.create_task(task(number))

    async def main() -> None:
        group = asyncio.create_task(everybody())
        await asyncio.sleep(1.0)
        group.cancel()
        await asyncio.wait([group])

    clock.run(main, virtual=True)
    assert ended == list(range(50))


def test_a_wait_that_nothing_can_end_is_told_at_once_and_by_whom() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlineError, match="nothing can ever happen again in virtual time; waiting: nobody"):
        clock.run(main, virtual=True)
