"""A worker that is lost is replaced, and its calls are made again by others."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from arl.errors import DeadlineError, ProcessDied
from arl.reward.pool import RewardPool
from arl.types import Grade, Problem, Response
from tests.processes import MARK, left_behind
from tests.reward import hostile
from tests.reward.obedient import OBEY, grade_all, obey, one_hangs, pool_of, problem_in, the_worker, with_pool

LATER = """
import os, pathlib, time

first = pathlib.Path(__file__).with_name("first")
if first.exists():
    pathlib.Path(os.environ["NOTES"]).write_text("imports")
    time.sleep(613)
first.touch()


def score(problem, response):
    return 1.0
"""


def test_a_killed_worker_is_replaced_and_its_calls_are_made_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tries")

    async def work(pool: RewardPool) -> list[Grade]:
        scorer = pool.scorer(OBEY)
        calls = asyncio.create_task(grade_all(scorer, problem_in(tmp_path), "hang", "honest"))
        await one_hangs(tmp_path)
        worker = the_worker()
        worker.kill()
        return await calls

    hung, honest = with_pool(pool_of(tmp_path, timeout=2.0), work)
    assert hung.error == "no answer in 2 s (deadlines.reward)"
    assert honest == Grade(1.0)


def test_a_stopped_worker_is_replaced_when_it_has_said_nothing_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arl.reward.pool.GRACE", 0.5)

    async def work(pool: RewardPool) -> tuple[int, Grade]:
        worker = the_worker()
        worker.send_signal(signal.SIGSTOP)
        return worker.pid, await pool.scorer(OBEY).score(Problem("?"), Response("honest"))

    notes: list[str] = []
    pid, grade = with_pool(pool_of(tmp_path, timeout=3.0, note=notes.append), work)
    assert grade == Grade(1.0)
    assert notes[0].startswith(
        f"reward worker (pid {pid}) is stopped by a signal (SIGSTOP?), and has said nothing for "
    )


def test_a_call_that_kills_every_worker_it_gets_is_given_up(tmp_path: Path) -> None:
    (grade,) = obey(pool_of(tmp_path), tmp_path, "kill-worker")
    assert grade == Grade(0.0, {}, "the worker process died")


def test_calls_that_wait_behind_one_that_kills_every_worker_are_graded(tmp_path: Path) -> None:
    killer, *honest = obey(pool_of(tmp_path), tmp_path, "kill-worker", *["honest"] * 20)
    assert killer.error == "the worker process died"
    assert honest == [Grade(1.0)] * 20


def test_a_hanging_call_whose_worker_was_lost_delays_the_others_by_no_deadline(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tries")

    async def work(pool: RewardPool) -> list[Grade]:
        scorer = pool.scorer(OBEY)
        hanging = asyncio.create_task(scorer.score(problem_in(tmp_path), Response("hang")))
        await one_hangs(tmp_path)
        the_worker().kill()
        honest = asyncio.create_task(grade_all(scorer, Problem("honest"), *["honest"] * 20))
        await one_hangs(tmp_path)  # again, in a new worker
        grades = await honest
        hanging.cancel()
        return grades

    assert with_pool(pool_of(tmp_path, timeout=3600.0), work) == [Grade(1.0)] * 20


def test_a_function_that_a_worker_cannot_import_is_told_at_once(tmp_path: Path) -> None:
    absent = f"{hostile.__name__}:absent"
    with pytest.raises(ProcessDied, match=r"reward worker \(pid \d+\) exited with code 1 while it imported .*; see"):
        with_pool(pool_of(tmp_path, absent), nothing)
    assert "has no attribute absent" in (tmp_path / "reward.log").read_text()


def test_a_pool_of_processes_that_the_import_has_made_is_refused(tmp_path: Path) -> None:
    """All lanes would share its pipes, and get each other's results."""
    with pytest.raises(ProcessDied, match=r"reward worker \(pid \d+\) exited with code 1 while it imported"):
        with_pool(pool_of(tmp_path, "tests.reward.shared_pool:score"), nothing)
    log = (tmp_path / "reward.log").read_text()
    assert "has made a ProcessPoolExecutor while it was imported" in log
    assert "Traceback" not in log


def test_a_pool_that_is_closed_waits_for_no_import_of_a_worker_that_takes_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    os.mkfifo(tmp_path / "notes")
    (tmp_path / "later.py").write_text(LATER)

    async def work(pool: RewardPool) -> None:
        the_worker().kill()
        await asyncio.to_thread((tmp_path / "notes").read_text)

    began = time.monotonic()
    with_pool(pool_of(tmp_path, "later:score"), work)
    assert time.monotonic() - began < 60.0


def test_a_function_whose_import_hangs_is_given_up_at_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "sleepy.py").write_text("import time\ntime.sleep(613)\n")
    pool = pool_of(tmp_path, "sleepy:score")
    pool._startup = 1.0
    with pytest.raises(DeadlineError, match=r"reward worker \(pid \d+\) to import sleepy:score"):
        with_pool(pool, nothing)
    assert not left_behind(str(tmp_path))


async def nothing(pool: RewardPool) -> None:
    pass


def test_a_worker_that_cannot_be_replaced_is_an_error_and_no_endless_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arl.reward.pool.REPLACING", 0.0)

    async def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    async def work(pool: RewardPool) -> None:
        monkeypatch.setattr("arl.reward.worker_link.spawn", refuse)
        for _ in range(2):  # who waits when it happens, and who comes later
            with pytest.raises(ProcessDied, match=r"cannot be started \(no more processes\)"):
                await pool.scorer(OBEY).score(Problem("?"), Response("kill-worker"))

    with_pool(pool_of(tmp_path, timeout=1.0), work)
