"""Check reward workers as real processes, with functions that really hang and die."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from arl.errors import DeadlineError, ProcessDied
from arl.reward.pool import RewardPool
from arl.reward.scorer import Scorer
from arl.reward.ungraded import UngradedLog
from arl.types import Grade, Problem, Response
from tests.forks import ROOT
from tests.processes import MARK, left_behind
from tests.reward import hostile

T = TypeVar("T")
OBEY = f"{hostile.__name__}:obey"
LENGTH = f"{hostile.__name__}:length"
PATIENT = 60.0  # seconds; a deadline that no honest call meets, however busy the machine


def pool_of(
    directory: Path,
    *functions: str,
    workers: int = 1,
    timeout: float = PATIENT,
    memory_gb: float = 1.0,
    note: Callable[[str], None] = lambda text: None,
) -> RewardPool:
    log = directory / "reward.log"
    return RewardPool(
        functions or (OBEY, LENGTH),
        workers=workers,
        timeout=timeout,
        memory_gb=memory_gb,
        startup=60.0,
        log=log,
        environment={},
        ungraded=UngradedLog(log, note),
    )


def with_pool(pool: RewardPool, work: Callable[[RewardPool], Coroutine[None, None, T]]) -> T:
    async def main() -> T:
        async with asyncio.timeout(240), pool:
            try:
                return await work(pool)
            except asyncio.CancelledError as error:
                error.add_note(_state(pool))
                raise

    return asyncio.run(main())


def _state(pool: RewardPool) -> str:
    """Say what each worker owes, and what workers and lanes have written, for the report of a wait without end."""
    owed = [f"{worker.pid} owes {len(worker.owed)} and keeps {len(worker.unreleased)}" for worker in pool.workers]
    return "\n".join([*owed, pool._log.read_text()[-4000:]])


def problem_in(directory: Path) -> Problem:
    return Problem("?", metadata={"directory": str(directory)})


def obey(pool: RewardPool, directory: Path, *commands: str) -> list[Grade]:
    """Have the pool grade one episode for each command."""
    return with_pool(pool, lambda pool: grade_all(pool.scorer(OBEY), problem_in(directory), *commands))


async def grade_all(scorer: Scorer, problem: Problem, *texts: str) -> list[Grade]:
    """Ask for all grades at once, in the order of the texts."""
    return await asyncio.gather(*(scorer.score(problem, Response(text)) for text in texts))


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
        ("segfault", "its process died with SIGSEGV"),
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


@pytest.mark.parametrize("command", ["hang", "burn", "hang-through-signals"])
def test_a_response_that_hangs_is_graded_0_after_two_deadlines(tmp_path: Path, command: str) -> None:
    hung, honest = obey(pool_of(tmp_path, timeout=2.0), tmp_path, command, "honest")
    assert hung == Grade(0.0, {}, "no answer in 2 s (deadlines.reward)")
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


async def one_hangs(directory: Path) -> None:
    """Return when the first call of `directory` has begun to hang; it writes to a FIFO then."""
    await asyncio.to_thread((directory / "tries").read_text)


def marked(directory: Path) -> list[psutil.Process]:
    """Return the processes of this test."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(directory) and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_what_a_function_starts_inherits_no_connection(tmp_path: Path) -> None:
    (grade,) = obey(pool_of(tmp_path), tmp_path, "descriptors")
    assert grade == Grade(0.0)


def test_a_lane_cannot_register_what_wakes_its_worker(tmp_path: Path) -> None:
    assert obey(pool_of(tmp_path), tmp_path, "epolls") == [Grade(0.0)]


def the_worker() -> psutil.Process:
    """The pool's one worker; other tests leave other children."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "arl.reward.worker" in child.cmdline():
                found.append(child)
    (worker,) = found
    return worker


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
