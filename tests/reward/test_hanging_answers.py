"""A call that hangs is given up after its deadline, and holds up no other."""

import asyncio
from pathlib import Path

import pytest

from arl.reward.pool import RewardPool
from arl.types import Grade, Problem, Response
from tests.reward.obedient import OBEY, grade_all, obey, pool_of, the_worker, with_pool


@pytest.mark.parametrize("command", ["hang", "burn", "hang-through-signals"])
def test_a_response_that_hangs_is_graded_0_after_two_deadlines(tmp_path: Path, command: str) -> None:
    hung, honest = obey(pool_of(tmp_path, timeout=2.0), tmp_path, command, "honest")
    assert hung == Grade(0.0, {}, "no answer in 2 s (deadlines.reward)")
    assert honest == Grade(1.0)


def test_a_worker_whose_one_call_hangs_twice_lives_although_nobody_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has said that the call goes on aside, long before; then it waits for two deadlines."""
    monkeypatch.setattr("arl.reward.pool.GRACE", 1.5)

    async def work(pool: RewardPool) -> list[Grade]:
        before = the_worker().pid
        grades = await grade_all(pool.scorer(OBEY), Problem("?"), "hang", "honest")
        assert the_worker().pid == before
        return grades

    hung, honest = with_pool(pool_of(tmp_path, timeout=4.0), work)
    assert hung.error == "no answer in 4 s (deadlines.reward)"
    assert honest == Grade(1.0)


def test_a_hanging_call_is_made_twice_and_not_more_often(tmp_path: Path) -> None:
    (tmp_path / "tries").touch()
    obey(pool_of(tmp_path, timeout=3.0), tmp_path, "hang", "honest")
    assert (tmp_path / "tries").read_text() == "xx"


def test_honest_answers_pass_many_hanging_ones_whose_deadline_never_comes(tmp_path: Path) -> None:
    """More hang than a worker has places aside, and were asked for first; a deadline is longer than the test."""

    async def work(pool: RewardPool) -> list[Grade]:
        scorer = pool.scorer(OBEY)
        poisoned = asyncio.create_task(grade_all(scorer, Problem("poisoned"), *["hang", "burn"] * 6))
        honest = await grade_all(scorer, Problem("honest"), *["honest"] * 20)
        assert not poisoned.done()
        poisoned.cancel()
        return honest

    assert with_pool(pool_of(tmp_path, timeout=3600.0), work) == [Grade(1.0)] * 20


@pytest.mark.slow
def test_500_honest_answers_pass_500_hanging_ones_whose_deadline_never_comes(tmp_path: Path) -> None:
    """Each pair is one problem's; no honest answer waits for a deadline, which is longer than the test."""

    async def work(pool: RewardPool) -> list[Grade]:
        scorer = pool.scorer(OBEY)
        honest = []
        hanging = []
        for i in range(500):
            command = "hang" if i % 2 else "burn"
            honest.append(asyncio.create_task(scorer.score(Problem("honest"), Response("honest"))))
            hanging.append(asyncio.create_task(scorer.score(Problem("poisoned"), Response(command))))
        grades = await asyncio.gather(*honest)
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()
        return grades

    assert with_pool(pool_of(tmp_path, workers=2, timeout=3600.0), work) == [Grade(1.0)] * 500


@pytest.mark.slow
def test_an_answer_that_takes_a_while_is_graded_although_others_hang_in_every_place(tmp_path: Path) -> None:
    """Aside, and in front, where nothing else comes. Their deadlines are longer than the test."""

    async def work(pool: RewardPool) -> Grade:
        scorer = pool.scorer(OBEY)

        def ask(command: str) -> asyncio.Task[Grade]:
            return asyncio.create_task(scorer.score(Problem("?"), Response(command)))

        hanging = [ask("hang") for _ in range(6)]
        slow = ask("take-a-while")
        await ask("honest")  # because it waits, the slow one is left behind
        hanging.append(ask("hang"))
        grade = await slow
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()
        return grade

    assert with_pool(pool_of(tmp_path, timeout=3600.0), work) == Grade(1.0)


def test_more_hanging_answers_than_places_aside_all_end_as_errors(tmp_path: Path) -> None:
    grades = obey(pool_of(tmp_path, timeout=1.0), tmp_path, *["hang"] * 7, *["honest"] * 20)
    assert [bool(grade.error) for grade in grades] == [True] * 7 + [False] * 20
