"""An env of a user's that raises, hangs, blocks or talks to the world is named, with the line where it did so."""

import asyncio
import time
from pathlib import Path

import pytest

from arl import clock
from arl.clock import now
from arl.rollout.env import Session
from arl.rollout.env_watch import EnvWatch
from arl.types import Grade, Problem, SamplingParams
from tests.extending.short_run import ShortRun, step_records
from tests.fakes import NullCodec, NullEngine

HERE = "tests.rollout.test_users_env"
BAD = "5eba37a5a60f"  # a problem of the short run's first step


async def careless(problem: Problem, session: Session) -> None:
    """Fail at one problem."""
    await session.generate(limit=4)
    if problem.id == BAD:
        raise KeyError("tool")


async def stuck(problem: Problem, session: Session) -> None:
    """Wait for an answer that never comes, at one problem."""
    await session.generate(limit=4)
    if problem.id == BAD:
        await asyncio.Event().wait()


async def slow_tool(problem: Problem, session: Session) -> float:
    """Call blocking code as the page on envs says."""
    await session.generate(limit=4)
    await asyncio.to_thread(time.sleep, 0.001)
    return 1.0


async def graded(problem: Problem, session: Session) -> Grade:
    """Give a reward with parts."""
    await session.generate(limit=4)
    return Grade(0.5, parts={"letters": 4.0, "correct": 1.0})


async def online(problem: Problem, session: Session) -> None:
    """Ask a server."""
    await asyncio.open_connection("localhost", 9)


def trained(directory: Path, env: str, *overrides: str) -> str:
    """Run `env` for two steps in virtual time, and return what the console showed, on one line."""
    run = ShortRun(directory, f"rollout.env={HERE}:{env}", "rollout.max_failed_share=0.9", *overrides)
    assert len(step_records(run.train())) == 2
    return run.output.getvalue()


def test_an_env_may_give_named_parts_with_its_reward(tmp_path: Path) -> None:
    records = step_records(ShortRun(tmp_path, f"rollout.env={HERE}:graded").train())
    for record in records:
        assert record["reward/trained_mean"] == 0.5
        assert record["reward/letters"] == 4
        assert record["reward/correct"] == 1


def test_an_exception_of_an_env_has_its_line_each_time_and_its_traceback_once_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    shown = trained(tmp_path, "careless", "rollout.max_requeues=2")
    line = f"env {HERE}:careless on {BAD}: KeyError: 'tool' ({__file__}:"
    assert shown.count(line) == 3
    assert shown.count('raise KeyError("tool")') == 1
    log = (tmp_path / "runs/short/logs/env.log").read_text()
    assert log.count(line) == log.count('raise KeyError("tool")') == 3


def test_a_silent_env_fails_its_group_after_the_deadline_and_is_named_with_the_line_where_it_waits(
    tmp_path: Path,
) -> None:
    shown = trained(tmp_path, "stuck", "deadlines.episode=3")
    assert f"env {HERE}:stuck on {BAD}: took no turn and did not end for 3 s (deadlines.episode) ({__file__}:" in shown
    assert "await asyncio.Event().wait()" in shown


def test_the_deadline_of_an_env_does_not_count_the_turns_of_the_policy(tmp_path: Path) -> None:
    slow_engine = "virtual.engine_pass=4"  # seconds; a turn takes four passes
    assert "deadlines.episode" not in trained(tmp_path, "slow_tool", "deadlines.episode=3", slow_engine)


def test_the_deadline_of_an_env_does_not_count_while_one_of_its_turns_is_open() -> None:
    async def asks_twice(problem: Problem, session: Session) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(session.generate())
            await asyncio.sleep(0)
            session.fork(session.branches[0], 1, ())
            tasks.create_task(session.generate())

    async def main() -> float:
        engine = NullEngine(lambda seed: 1, seconds_of=lambda seed: 1.0 if seed else 100.0)
        session = Session(engine, NullCodec(), SamplingParams(9), (1,), 9, "g0.0", "g0")
        await EnvWatch("my_env:ask", silence=5.0).drive(asks_twice, Problem("p"), session)
        return now()

    assert clock.run(main, virtual=True) == 100.0


def test_work_for_a_thread_is_done_in_place_in_virtual_time_and_a_connection_is_refused(tmp_path: Path) -> None:
    assert "failed" not in trained(tmp_path / "thread", "slow_tool")
    run = ShortRun(tmp_path / "online", f"rollout.env={HERE}:online")
    with pytest.raises(Exception, match=r"NotImplementedError: create_connection in virtual time.*to_thread"):
        run.train()


def test_an_env_that_blocks_the_controller_is_named_once_for_each_doubling() -> None:
    notes: list[str] = []
    watch = EnvWatch("my_env:ask", note=notes.append)

    async def blocks(problem: Problem, session: Session) -> None:
        for seconds in (0.3, 0.01, 1.0):
            time.sleep(seconds)  # noqa: ASYNC251 - the mistake that is to be named
            await asyncio.sleep(0)

    async def main() -> None:
        session = Session(NullEngine(lambda seed: 1), NullCodec(), SamplingParams(1), (1,), 9, "g0.0", "g0")
        await watch.drive(blocks, Problem("p"), session)

    clock.run(main)
    assert [note.partition(" for ")[0] for note in notes] == ["env my_env:ask blocked the controller"] * 2
