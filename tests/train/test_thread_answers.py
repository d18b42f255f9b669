"""Answers of rank 0's threads reach whoever asked, and others are refused. Nothing is kept of those that have left."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from arl.train.channel import Claimed, Joined, Sent
from arl.train.thread_answers import ThreadAnswers
from arl.train.waits import Waits

OUTCOMES = ["answered", "given up", "not sent", "left"]
JOINED = Joined("n1", 7, "gloo")


async def leave(answers: ThreadAnswers, role: str, answered: asyncio.Future[Any]) -> None:
    """Let a thread leave while somebody waits for its answer."""
    answers.left(role)
    await answered


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(OUTCOMES)), max_size=20))
def test_after_any_series_of_questions_nothing_is_kept_but_of_threads_that_owe_an_answer(
    questions: list[tuple[int, str]],
) -> None:
    async def scene() -> None:
        answers = ThreadAnswers(Waits())
        for thread, outcome in questions:
            role = f"group {thread}"
            if outcome == "not sent":
                with pytest.raises(ConnectionError), answers.next(role, Sent):
                    raise ConnectionError("its connection is gone")
            elif outcome == "given up":
                with pytest.raises(TimeoutError), answers.next(role, Sent) as answered:
                    async with asyncio.timeout(0):
                        await answered
                assert answers.expects(role)
                answers.add(role, Sent("too late"))
            elif outcome == "left":
                with pytest.raises(ConnectionError, match="of rank 0 has ended"), answers.next(role, Sent) as answered:
                    await leave(answers, role, answered)
            else:
                with answers.next(role, Sent) as answered:
                    answers.add(role, Sent())
                    assert await answered == Sent()
            assert not answers.expects(role)
            assert len(answers) == 0

    asyncio.run(scene())


def test_an_answer_that_comes_too_late_is_not_taken_for_that_of_the_next_question() -> None:
    async def scene() -> None:
        answers = ThreadAnswers(Waits())
        with pytest.raises(TimeoutError), answers.next("claims", Claimed) as answered:
            async with asyncio.timeout(0):
                await answered
        with answers.next("claims", Claimed) as answered:
            answers.add("claims", Claimed(5))
            assert not answered.done()
            answers.add("claims", Claimed(6))
            assert await answered == Claimed(6)

    asyncio.run(scene())


@pytest.mark.parametrize("answer", [JOINED, Sent(), Claimed(5)])
def test_an_answer_for_which_nobody_has_asked_is_refused_and_so_is_one_of_another_kind(answer: Struct) -> None:
    name = type(answer).__name__

    async def scene() -> None:
        answers = ThreadAnswers(Waits())
        with pytest.raises(TypeError, match=f"{name}, for which nobody has asked"):
            answers.add("arl-7", answer)
        others = [kind for kind in (Joined, Sent, Claimed) if kind is not type(answer)]
        with answers.next("arl-7", *others), pytest.raises(TypeError, match=f"{name} instead of .* or "):
            answers.add("arl-7", answer)

    asyncio.run(scene())


def test_a_group_that_has_opened_may_break_at_any_time_and_is_forgotten_when_its_thread_leaves() -> None:
    async def scene() -> None:
        answers = ThreadAnswers(Waits())
        with answers.next("arl-7", Joined, Sent) as joined:
            answers.add("arl-7", JOINED)
            answers.add("arl-7", Sent("nobody has come"))
            assert await joined == JOINED
        with pytest.raises(TypeError, match="Sent, for which nobody has asked"):
            answers.add("arl-7", Sent())
        assert answers.expects("arl-7")
        answers.left("arl-7")
        assert len(answers) == 0

    asyncio.run(scene())
