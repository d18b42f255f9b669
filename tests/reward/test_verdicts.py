"""Whatever the calls around it do, each honest call gets its own verdict."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arl.reward.call_queue import CANNOT_SEND
from arl.reward.grading import judge
from arl.reward.messages import MOST_PARTS, fault_in
from arl.reward.pool import RewardPool
from arl.types import Grade, Problem, Response
from tests.reward.hostile import HALVES, QUICK_ERRORS, obey
from tests.reward.obedient import OBEY, grade_all, pool_of, with_pool

QUICK = [*QUICK_ERRORS, "raise", "exit", "segfault", "nan", "text", "nothing", "no-parts", "many-parts", "complex"]
IN_A_LANE = ["exit", "segfault", "write-everywhere", "close-everything", "kill-group", "interrupt"]


@contextlib.contextmanager
def opened(pool: RewardPool) -> Iterator[asyncio.Runner]:
    """Keep a pool open in an event loop that a test may enter again and again."""
    with asyncio.Runner() as runner:
        runner.run(pool.__aenter__())
        try:
            yield runner
        finally:
            runner.run(pool.__aexit__(None, None, None))


@pytest.mark.slow
def test_every_honest_call_gets_its_own_verdict_between_hostile_ones(tmp_path: Path) -> None:
    numbers = st.integers(-(10**6), 10**6).map(lambda number: f"honest {number}")
    hostile = st.sampled_from([*QUICK, *HALVES, *IN_A_LANE])
    pool = pool_of(tmp_path, workers=2)
    with opened(pool) as runner:

        @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(st.lists(st.one_of(numbers, numbers, hostile), max_size=24))
        def check(texts: list[str]) -> None:
            grades = runner.run(grade_all(pool.scorer(OBEY), Problem("?"), *texts))
            for text, grade in zip(texts, grades, strict=True):
                assert_fits(text, grade)

        check()


def assert_fits(text: str, grade: Grade) -> None:
    name, _, number = text.partition(" ")
    if name == "honest":
        assert grade == Grade(float(number)), text
    elif name in HALVES:
        assert (grade.reward, grade.error) == (0.5, ""), text
    else:
        assert grade.reward == 0, text
        assert grade.error, text
        assert len(grade.error) < 1000, text


@pytest.mark.parametrize("name", sorted(HALVES))
def test_what_a_call_starts_forges_no_verdict(tmp_path: Path, name: str) -> None:
    async def work(pool: RewardPool) -> list[Grade]:
        return await grade_all(pool.scorer(OBEY), Problem("?"), "honest 3", name, "honest 4", "honest 5")

    before, strange, *after = with_pool(pool_of(tmp_path), work)
    assert (before, after) == (Grade(3.0), [Grade(4.0), Grade(5.0)])
    assert (strange.reward, strange.error) == (0.5, "")


def test_a_program_that_makes_its_streams_non_blocking_does_so_for_no_later_call(tmp_path: Path) -> None:
    """In its own lane and worker, and in another one; both workers write into one pipe."""

    async def work(pool: RewardPool) -> list[Grade]:
        scorer = pool.scorer(OBEY)
        await grade_all(scorer, Problem("?"), "unblock")
        return await grade_all(scorer, Problem("?"), *["stream-flags"] * 4)

    assert with_pool(pool_of(tmp_path, workers=2), work) == [Grade(0.0)] * 4


@pytest.mark.parametrize("name", sorted(set(QUICK) - set(IN_A_LANE)))
def test_whatever_a_function_returns_or_raises_becomes_a_fit_verdict(name: str) -> None:
    verdict = judge(obey, Problem("?"), Response(name))
    assert verdict.error
    assert not fault_in(verdict)
    (verdict.error + verdict.traceback).encode()
    assert len(verdict.error + verdict.traceback) < 4000


def test_a_function_may_name_as_many_parts_as_a_verdict_holds_in_characters_of_four_bytes(tmp_path: Path) -> None:
    grade, after = obey_all(tmp_path, "largest", "honest 3")
    assert (grade.reward, len(grade.parts), grade.error) == (MOST_PARTS, MOST_PARTS, "")
    assert after == Grade(3.0)


def obey_all(directory: Path, *texts: str) -> list[Grade]:
    return with_pool(pool_of(directory), lambda pool: grade_all(pool.scorer(OBEY), Problem("?"), *texts))


def test_a_problem_that_no_message_can_hold_has_no_grade_and_the_next_one_has(tmp_path: Path) -> None:
    async def work(pool: RewardPool) -> list[Grade]:
        scorer = pool.scorer(OBEY)
        strange = [Problem("?", metadata={"n": value}) for value in (2**64, "\ud800", object())]
        grades = [await scorer.score(problem, Response("honest 2")) for problem in strange]
        return [*grades, await scorer.score(Problem("?"), Response("honest 3"))]

    *refused, honest = with_pool(pool_of(tmp_path), work)
    assert all(grade.error.startswith(CANNOT_SEND) for grade in refused)
    assert honest == Grade(3.0)
