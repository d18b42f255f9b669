"""Check reward workers as real processes that really die."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from arl.errors import RewardError
from arl.reward.pool import InlineRewards, RewardPool
from arl.types import Grade, Problem, Response
from tests.processes import MARK, left_behind

HERE = __name__


def half(problem: Problem, response: Response) -> float:
    return 0.5 if response.text == "half" else float(len(response.text))


def noisy(problem: Problem, response: Response) -> float:
    print("prints must not reach the protocol", flush=True)
    return float(response.truncated)


def misbehaving(problem: Problem, response: Response) -> float:
    if response.text == "raise":
        raise ValueError("cannot judge this")
    if response.text == "hang":
        time.sleep(3600)
    if response.text == "die":
        os._exit(9)
    if response.text == "nan":
        return float("nan")
    return 1.0


def pool_of(function: str, directory: Path, *, workers: int = 1, timeout: float = 20.0) -> RewardPool:
    return RewardPool(
        f"{HERE}:{function}",
        workers=workers,
        timeout=timeout,
        startup=60.0,
        log=directory / "reward.log",
        environment={},
    )


def score(function: str, tmp_path: Path, *responses: str, timeout: float = 20.0) -> list[float]:
    async def main() -> list[float]:
        async with pool_of(function, tmp_path, timeout=timeout) as pool:
            grades = await pool.score(Problem("?"), [Response(text, truncated=True) for text in responses])
            return [grade.reward for grade in grades]

    return asyncio.run(main())


def test_scores_come_back_in_order(tmp_path: Path) -> None:
    assert score("half", tmp_path, "half", "", "abc") == [0.5, 0.0, 3.0]


def test_what_a_reward_prints_goes_to_the_log(tmp_path: Path) -> None:
    assert score("noisy", tmp_path, "x", "y") == [1.0, 1.0]
    assert "prints must not reach" in (tmp_path / "reward.log").read_text()


@pytest.mark.parametrize(
    ("response", "complaint"),
    [("raise", "cannot judge this"), ("nan", "return a finite number"), ("die", "its process died")],
)
def test_a_reward_that_raises_dies_or_returns_no_number_is_an_error_not_a_zero(
    tmp_path: Path, response: str, complaint: str
) -> None:
    with pytest.raises(RewardError, match=complaint):
        score("misbehaving", tmp_path, "fine", response)


def test_a_hung_worker_is_replaced_and_the_next_group_is_scored(tmp_path: Path) -> None:
    async def main() -> list[Grade]:
        async with pool_of("misbehaving", tmp_path, timeout=3.0) as pool:
            with pytest.raises(RewardError, match=r"no answer in the time of 1 calls of 3 s each \(deadlines.reward\)"):
                await pool.score(Problem("?"), [Response("hang")])
            return await pool.score(Problem("?"), [Response("fine")])

    assert asyncio.run(main()) == [Grade(1.0)]


def forking(problem: Problem, response: Response) -> float:
    """Leave a child behind that holds the worker's socket, and hangs."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(613)"], pass_fds=(0,))
    return misbehaving(problem, response)


def test_a_hung_worker_goes_with_everything_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))
    with pytest.raises(RewardError, match="no answer in the time"):
        score("forking", tmp_path, "hang", timeout=3.0)
    assert not left_behind(str(tmp_path))


def test_a_reward_that_cannot_be_imported_by_a_worker_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="died at its start"):
        score("absent", tmp_path, "x")


def test_a_worker_that_cannot_be_replaced_is_an_error_and_no_endless_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    async def main() -> None:
        async with pool_of("misbehaving", tmp_path) as pool:
            monkeypatch.setattr("arl.reward.pool.spawn", refuse)
            with pytest.raises(RewardError, match="its process died"):
                await pool.score(Problem("?"), [Response("die")])
            async with asyncio.timeout(60):
                with pytest.raises(RewardError, match=r"cannot be started \(no more processes\)"):
                    await pool.score(Problem("?"), [Response("fine")])

    asyncio.run(main())


def test_many_groups_share_few_workers_and_none_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))

    async def main() -> list[list[Grade]]:
        async with pool_of("half", tmp_path, workers=2) as pool:
            return await asyncio.gather(*(pool.score(Problem("?"), [Response("x" * i)]) for i in range(40)))

    assert asyncio.run(main()) == [[Grade(float(i))] for i in range(40)]
    assert not left_behind(str(tmp_path))


def test_inline_rewards_name_the_problem_of_an_error() -> None:
    with pytest.raises(RewardError, match=f"problem {Problem('?').id}: (?s:.*)cannot judge this"):
        asyncio.run(InlineRewards(misbehaving).score(Problem("?"), [Response("raise")]))


def test_inline_rewards_judge_as_the_workers_do() -> None:
    async def main() -> list[Grade]:
        return await InlineRewards(half).score(Problem("?"), [Response("half"), Response("ab")])

    assert asyncio.run(main()) == [Grade(0.5), Grade(2.0)]
