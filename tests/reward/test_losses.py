"""A call is given up for the workers that it loses, and not for those that others lose beside it."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from arl.launch.frames import frame
from arl.reward.call_queue import LOST
from arl.reward.messages import READY, Answer, RewardCall, Verdict
from arl.reward.pool import RewardPool
from arl.reward.worker_link import WorkerLink
from arl.types import Grade, Problem, Response
from tests.processes import MARK
from tests.reward import scarce
from tests.reward.obedient import OBEY, grade_all, marked, obey, one_hangs, pool_of, problem_in, the_worker, with_pool

SCARCE = f"{scarce.__name__}:score"


def test_a_slow_call_is_graded_although_workers_were_lost_while_others_shared_them(tmp_path: Path) -> None:
    slow, other = tmp_path / "slow", tmp_path / "other"
    for directory in (slow, other):
        directory.mkdir()
        os.mkfifo(directory / "tries")
    os.mkfifo(slow / "go")

    async def work(pool: RewardPool) -> Grade:
        scorer = pool.scorer(OBEY)
        waiting = asyncio.create_task(scorer.score(problem_in(slow), Response("wait")))
        hanging = asyncio.create_task(scorer.score(problem_in(other), Response("hang")))
        for _ in range(2):
            await one_hangs(slow)
            await one_hangs(other)  # joins it when it is left behind
            the_worker().kill()
        await one_hangs(slow)  # now it has a worker for itself, which somebody else kills
        the_worker().kill()
        await one_hangs(slow)
        await asyncio.to_thread((slow / "go").write_text, "go")
        grade = await waiting
        hanging.cancel()
        return grade

    assert with_pool(pool_of(tmp_path, timeout=3600.0), work) == Grade(0.5)


def test_a_worker_takes_nothing_beside_the_only_call_until_that_is_answered() -> None:
    async def main() -> list[bool]:
        answered: asyncio.Queue[Answer] = asyncio.Queue()
        ours, theirs = socket.socketpair()
        _, link = await asyncio.get_running_loop().create_connection(
            lambda: WorkerLink(lambda link, answer: answered.put_nowait(answer), lambda link: None), sock=ours
        )
        rooms = []
        with theirs:
            call = RewardCall(1, 0, Problem("?"), Response("x"), is_alone=True)
            link.send(call, frame(call), only_call=True)
            theirs.sendall(frame(Answer(READY)))
            for answer in (Answer(1), Answer(1, Verdict())):
                theirs.sendall(frame(answer))
                await answered.get()
                rooms.append(link.has_room(alone=False))
            link._close()
        return rooms

    assert asyncio.run(main()) == [False, True]


def test_a_worker_that_gets_no_process_for_a_lane_waits_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(scarce.DIRECTORY, str(tmp_path))

    async def work(pool: RewardPool) -> list[Grade]:
        before = the_worker().pid
        grades = await grade_all(pool.scorer(SCARCE), Problem("?"), *["honest"] * 3)
        assert the_worker().pid == before
        return grades

    assert with_pool(pool_of(tmp_path, SCARCE), work) == [Grade(1.0)] * 3


def test_a_program_that_takes_all_processes_costs_its_own_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker gets a lane while the program lives; it lives in the worker of the honest calls, then in one alone."""
    monkeypatch.setenv(scarce.DIRECTORY, str(tmp_path))

    async def work(pool: RewardPool) -> list[Grade]:
        return await grade_all(pool.scorer(SCARCE), Problem("?"), "honest", "take", *["honest"] * 20)

    first, taker, *others = with_pool(pool_of(tmp_path, SCARCE, timeout=3.0), work)
    assert [first, *others] == [Grade(1.0)] * 21
    assert taker.error == "no answer in 3 s (deadlines.reward)"


def test_a_worker_that_cannot_be_replaced_at_first_is_replaced_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []

    async def work(pool: RewardPool) -> Grade:
        async def refuse(*_: object, **__: object) -> None:
            monkeypatch.undo()
            raise BlockingIOError("no more processes")

        monkeypatch.setattr("arl.reward.worker_link.spawn", refuse)
        the_worker().kill()
        return await pool.scorer(OBEY).score(Problem("?"), Response("honest"))

    assert with_pool(pool_of(tmp_path, note=notes.append), work) == Grade(1.0)
    assert "cannot be started (no more processes); it is tried again" in notes[0]


def test_a_daemon_that_kills_its_worker_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in a session of its own, and no worker is its parent any more."""
    monkeypatch.setenv(MARK, str(tmp_path))
    killer, honest = obey(pool_of(tmp_path), tmp_path, "kill-worker-from-a-daemon", "honest")
    assert killer.error == LOST
    assert honest == Grade(1.0)
    assert not marked(tmp_path)
