"""The first failure of a trainer ends every wait, and each rank answers once."""

import asyncio

import pytest

from arl.errors import TrainerError
from arl.train.channel import Saved, Sent
from arl.train.waits import Answers, Waits, WatchedTasks


@pytest.mark.parametrize("error", [ValueError("bad"), TrainerError("rank 1 has sent what is no message")])
def test_a_task_that_listens_and_fails_ends_every_wait_by_name(error: Exception) -> None:
    async def fail() -> None:
        raise error

    async def scene() -> None:
        waits = Waits()
        tasks = WatchedTasks(waits)
        pending = waits.new()
        tasks.begin("trainer messages", fail())
        with pytest.raises(TrainerError, match=r"rank 1 has sent|^trainer messages: .*ValueError\('bad'\)"):
            async with asyncio.timeout(30):
                await pending
        await tasks.close()

    asyncio.run(scene())


def test_a_rank_that_answers_twice_or_something_else_is_refused() -> None:
    async def scene() -> None:
        answers = Answers(Sent, 2, Waits().new())
        answers.add(1, Sent())
        with pytest.raises(TypeError, match="a second Sent from rank 1"):
            answers.add(1, Sent())
        with pytest.raises(TypeError, match="Saved from rank 0 instead of Sent"):
            answers.add(0, Saved(1))

    asyncio.run(scene())


def test_a_failure_ends_the_waits_that_are_left_also_just_after_another_one_has_ended() -> None:
    async def scene() -> None:
        waits = Waits()
        answered = waits.new()
        pending = waits.new()
        answered.set_result(None)
        waits.fail(TrainerError("rank 1 was lost"))
        with pytest.raises(TrainerError, match="rank 1 was lost"):
            await pending
        assert await answered is None

    asyncio.run(scene())
