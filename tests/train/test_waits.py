"""Answers of rank 0's threads reach whoever asked, and nothing is kept of threads that nobody asks."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import TrainerError
from arl.train.channel import Saved, Sent
from arl.train.waits import Answers, ThreadAnswers, Waits, WatchedTasks

OUTCOMES = ["answered", "given up", "failed"]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(OUTCOMES))))
def test_after_any_series_of_questions_nothing_of_them_is_kept(questions: list[tuple[int, str]]) -> None:
    async def scene() -> None:
        waits = Waits()
        answers = ThreadAnswers(waits)
        for number, (thread, outcome) in enumerate(questions):
            role = f"group {number}-{thread}"
            if outcome == "failed":
                with pytest.raises(TrainerError), answers.next(role):
                    raise TrainerError("its connection is gone")
            elif outcome == "given up":
                with pytest.raises(TimeoutError), answers.next(role) as answered:
                    async with asyncio.timeout(0):
                        await answered
            else:
                with answers.next(role) as answered:
                    answers.add(role, Sent())
                    assert await answered == Sent()
            answers.add(role, Sent("too late"))
            assert len(answers) == 0

    asyncio.run(scene())


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
