"""A program of one call spoils no other: it ends with its call, and meddles with their processes in vain."""

import asyncio
from pathlib import Path

import pytest

from arl.reward.pool import RewardPool
from arl.types import Grade, Problem, Response
from tests.processes import MARK
from tests.reward import meddlers
from tests.reward.obedient import grade_all, marked, pool_of, with_pool

MEDDLE = f"{meddlers.__name__}:score"
HANGING = {"interrupt-others", "crash-others", "join-another-group"}  # until their deadlines


def meddle(directory: Path, *texts: str, timeout: float = 3.0, workers: int = 1) -> list[Grade]:
    pool = pool_of(directory, MEDDLE, timeout=timeout, workers=workers)
    return with_pool(pool, lambda pool: grade_all(pool.scorer(MEDDLE), Problem("?"), *texts))


@pytest.mark.parametrize(
    "deed", [pytest.param(deed, marks=pytest.mark.slow if deed in HANGING else []) for deed in meddlers.PROGRAMS]
)
def test_what_a_program_does_to_the_processes_of_other_calls_costs_them_nothing(tmp_path: Path, deed: str) -> None:
    first, _, *others = meddle(tmp_path, "honest", deed, *["slow", "honest", "honest"] * 3)
    assert [first, *others] == [Grade(1.0)] * 10


@pytest.mark.parametrize("deed", ["leave-a-daemon", "leave-one-in-its-group", "join-another-group", "leave-a-killer"])
def test_what_a_program_leaves_ends_with_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str) -> None:
    """In another session or process group too, while its lane and its worker go on."""
    monkeypatch.setenv(MARK, str(tmp_path))

    async def work(pool: RewardPool) -> list[int]:
        scorer = pool.scorer(MEDDLE)
        slow = asyncio.create_task(scorer.score(Problem("?"), Response("slow")))  # goes on aside
        await scorer.score(Problem("?"), Response(deed))
        await slow
        await scorer.score(Problem("?"), Response("honest"))
        return [process.pid for process in marked(tmp_path) if "-S" in process.cmdline()]

    assert with_pool(pool_of(tmp_path, MEDDLE, timeout=3.0), work) == []


def test_a_helper_that_a_function_has_started_itself_lives_for_the_next_call(tmp_path: Path) -> None:
    async def work(pool: RewardPool) -> list[Grade]:
        scorer = pool.scorer(MEDDLE)
        return [await scorer.score(Problem("?"), Response("keep-helper")) for _ in range(3)]

    grades = with_pool(pool_of(tmp_path, MEDDLE), work)
    assert not any(grade.error for grade in grades)
    assert len({grade.reward for grade in grades}) == 1


def test_a_function_that_sets_one_limit_hears_that_another_one_was_lowered(tmp_path: Path) -> None:
    graded = meddle(tmp_path, "lower-limits-of-lane", *["set-a-limit-and-write"] * 10)[1:]
    assert graded == [Grade(1.0)] * 10


def test_a_function_may_bound_its_own_process(tmp_path: Path) -> None:
    assert meddle(tmp_path, *["lower-own-limit"] * 2) == [Grade(float(1 << 20))] * 2


def test_lowered_limits_are_named_if_they_are_lowered_wherever_a_call_is_made(tmp_path: Path) -> None:
    (grade,) = meddle(tmp_path, "lower-limits-of-lane")
    assert grade.error == "another process has lowered the limits of its process (RLIMIT_FSIZE)"
