"""A pool grades every response with its function, and leaves nothing behind."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from arl.reward.pool import RewardPool
from arl.types import Grade, Problem, Response
from tests.forks import ROOT
from tests.processes import MARK, left_behind
from tests.reward import hostile
from tests.reward.obedient import LENGTH, OBEY, grade_all, marked, obey, one_hangs, pool_of, problem_in, with_pool


def test_every_response_gets_its_own_grade(tmp_path: Path) -> None:
    async def work(pool: RewardPool) -> list[Grade]:
        return await grade_all(pool.scorer(LENGTH), Problem("?"), *("x" * i for i in range(120)))

    assert with_pool(pool_of(tmp_path, workers=2), work) == [Grade(float(i)) for i in range(120)]


def test_one_pool_calls_several_functions_each_with_its_own_weights(tmp_path: Path) -> None:
    parts = f"{hostile.__name__}:parts"
    problem = Problem("?", answer="yes")

    async def work(pool: RewardPool) -> list[Grade]:
        plain = await pool.scorer(LENGTH).score(problem, Response("yes"))
        named = await pool.scorer(parts).score(problem, Response("yes"))
        weighted = await pool.scorer(parts, {"format": 0.0, "correct": 2.0}).score(problem, Response("no"))
        return [plain, named, weighted]

    both = {"correct": 1.0, "format": 1.0}
    expected = [Grade(3.0), Grade(2.0, both), Grade(0.0, {"correct": 0.0, "format": 1.0})]
    assert with_pool(pool_of(tmp_path, LENGTH, parts), work) == expected


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        ("raise", "ValueError: cannot judge this (_raise, line "),
        ("system-exit", "SystemExit: good-bye (_system_exit, line "),
        ("exit", "its process exited with code 9"),
        ("segfault", "its process was killed by SIGSEGV"),
        ("memory", "MemoryError (_memory, line "),
        ("close-everything", "it closed the file descriptors of its process"),
        ("write-everywhere", "something else wrote to the lane's connection"),
        ("nan", "no reward: the reward is nan: return a finite number, from -1e9 to 1e9"),
        ("text", "no reward: the reward is 'very good': return a finite number"),
        ("nothing", "no reward: the reward is None: return a finite number"),
        ("no-parts", "no reward: the reward has no parts"),
        ("many-parts", "no reward: the reward has more than 256 parts"),
        ("complex", "no reward: the reward is 1j: return a finite number"),
        ("huge-integer", "no reward: the reward is 1000"),
        ("very-huge-integer", "no reward: the reward is a number with too many digits to be shown: return a finite"),
        ("two-lines-name", r"no reward: the reward has a part named 'a\nb': a name is a line of text"),
    ],
)
def test_a_response_that_breaks_its_grader_is_graded_0_with_the_cause_and_the_others_are_graded(
    tmp_path: Path, command: str, cause: str
) -> None:
    before, broken, after = obey(pool_of(tmp_path, memory_gb=0.25), tmp_path, "honest", command, "honest")
    assert (before, after) == (Grade(1.0), Grade(1.0))
    assert broken.reward == 0
    assert broken.error.startswith(cause)


@pytest.mark.parametrize(("command", "reward"), [("alarm", 0.25), ("fork", 0.75), ("shout", 1.0), ("raise-once", 0.5)])
def test_strange_functions_that_do_answer_are_graded_and_so_are_those_after_them(
    tmp_path: Path, command: str, reward: float
) -> None:
    grades = obey(pool_of(tmp_path), tmp_path, command, "honest", f"{command} again")
    assert [grade.reward for grade in grades] == [reward, 1.0, reward]


def test_what_a_call_has_started_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sleeper that it starts has left its session, and the pool is still open."""
    monkeypatch.setenv(MARK, str(tmp_path))

    async def work(pool: RewardPool) -> None:
        workers = {process.pid for process in marked(tmp_path)}
        grade = await pool.scorer(OBEY).score(Problem("?"), Response("leave-and-hang"))
        assert grade.error
        assert {process.pid for process in marked(tmp_path)} == workers

    with_pool(pool_of(tmp_path, timeout=1.0), work)


def test_nothing_is_left_when_the_pool_closes_while_all_kinds_of_calls_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))
    os.mkfifo(tmp_path / "tries")

    async def work(pool: RewardPool) -> None:
        scorer = pool.scorer(OBEY)
        problem = problem_in(tmp_path)
        await grade_all(scorer, problem, "fork", "honest")
        running = grade_all(scorer, problem, "leave-and-hang", "hang-through-signals", "hang")
        asyncio.create_task(running)  # noqa: RUF006
        await one_hangs(tmp_path)

    with_pool(pool_of(tmp_path, workers=2), work)
    assert not left_behind(str(tmp_path))


def test_what_a_function_starts_inherits_no_connection(tmp_path: Path) -> None:
    (grade,) = obey(pool_of(tmp_path), tmp_path, "descriptors")
    assert grade == Grade(0.0)


def test_a_lane_cannot_register_what_wakes_its_worker(tmp_path: Path) -> None:
    assert obey(pool_of(tmp_path), tmp_path, "epolls") == [Grade(0.0)]


def test_what_a_function_prints_and_raises_goes_to_the_log_with_one_line_for_each_lost_grade(tmp_path: Path) -> None:
    obey(pool_of(tmp_path), tmp_path, "shout")
    obey(pool_of(tmp_path), tmp_path, "raise", "raise the second")
    log = (tmp_path / "reward.log").read_text()
    assert "loudloud" in log
    assert log.count("Traceback") == 4  # each is tried twice
    problem = problem_in(tmp_path).id
    line = f"no grade: problem {problem}: ValueError: cannot judge this (_raise, line"
    assert log.count(line) == 2
    assert "the answer begins 'raise the second'" in log


def test_the_console_names_a_cause_once_and_then_counts(tmp_path: Path) -> None:
    said: list[str] = []
    obey(pool_of(tmp_path, note=said.append), tmp_path, *["raise", "nan"] * 5)
    first, second, count = said
    assert "cannot judge this" in first
    assert str(tmp_path / "reward.log") in first
    assert "the reward is nan" in second
    assert count == "10 answers had no grade so far: 5 × ValueError, 5 × no reward"


def test_canceled_groups_leave_the_pool_in_order(tmp_path: Path) -> None:
    async def work(pool: RewardPool) -> Grade:
        scorer = pool.scorer(LENGTH)
        groups = [asyncio.create_task(grade_all(scorer, Problem("?"), *["ab"] * 50)) for _ in range(4)]
        await asyncio.sleep(0)
        for group in groups:
            group.cancel()
        return await scorer.score(Problem("?"), Response("abc"))

    assert with_pool(pool_of(tmp_path), work) == Grade(3.0)


SCRIPT = f"""
import sys
from pathlib import Path
from {__name__} import obey, pool_of

directory = Path(sys.argv[1])
obey(pool_of(directory), directory, "leave-and-hang")
"""


def test_a_controller_that_is_killed_leaves_nothing_not_even_what_a_call_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))
    os.mkfifo(tmp_path / "tries")
    controller = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=ROOT)
    assert (tmp_path / "tries").read_text() == "x"  # the call hangs, and its sleeper is in a session of its own
    controller.kill()
    controller.wait()
    assert not left_behind(str(tmp_path))
