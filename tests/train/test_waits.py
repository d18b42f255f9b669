"""Answers of rank 0's threads reach whoever asked, and nothing is kept of threads that nobody asks."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.errors import TrainerError
from arl.train.channel import Sent
from arl.train.waits import ThreadAnswers, Waits

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
