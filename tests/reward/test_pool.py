"""A pool grades every response with its function, whatever the function does, and leaves nothing behind."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec import structs

from arl.errors import DeadlineError, ProcessDied
from arl.launch.devices import visible_cores
from arl.reward.grading import Verdict
from arl.reward.pool import RewardPool
from arl.reward.scorer import Scorer, UngradedLog
from arl.reward.worker import Settings
from arl.types import Grade, Problem, Response
from tests.forks import ROOT
from tests.processes import MARK, left_behind
from tests.reward import hostile
from tests.reward.hostile import HALVES, NO_NUMBERS

T = TypeVar("T")
OBEY = f"{hostile.__name__}:obey"
PATIENT = 60.0  # seconds; a deadline that no honest call meets, however busy the machine
CAUSES = {  # why there is no grade
    "raise": "ValueError: cannot judge this (_raise, line ",
    "overflow": "RecursionError: maximum recursion depth exceeded",
    "system-exit": "SystemExit: good-bye (<lambda>, line ",
    "exit": "its process exited with code 9",
    "segfault": "its process was killed by SIGSEGV",
    "kill-group": "its process was killed by SIGKILL, perhaps because memory was short",
    "kill-keeper": "its process was killed by SIGKILL",
    "memory": "MemoryError (_memory, line ",
    "close-everything": "its process exited with code 1",
    "nan": "no reward: the reward is nan: return a finite number, from -1e9 to 1e9",
    "text": "no reward: the reward is '0.5': return a finite number",
    "no-parts": "no reward: the reward has no parts",
    "number-name": "no reward: the reward has a part named by int: a name is text",
}


def pool_of(
    directory: Path,
    function: str = OBEY,
    workers: int = 1,
    timeout: float = PATIENT,
    startup: float = PATIENT,
    environment: Mapping[str, str] | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> RewardPool:
    log = directory / "reward.log"
    return RewardPool(
        Settings((function,), workers, timeout, memory_gb=0.5),
        startup=startup,
        log=log,
        environment=environment or {},
        ungraded=UngradedLog(log, note),
    )


def with_pool(pool: RewardPool, work: Callable[[RewardPool], Coroutine[None, None, T]]) -> T:
    async def main() -> T:
        async with asyncio.timeout(240), pool:
            return await work(pool)

    return asyncio.run(main())


async def grade_all(pool: RewardPool, directory: Path, *texts: str) -> list[Grade]:
    """Ask for all grades at once, in the order of the texts."""
    problem = Problem("?", metadata={"directory": str(directory)})
    return await asyncio.gather(*(Scorer(pool, OBEY).score(problem, Response(text)) for text in texts))


def obey(pool: RewardPool, directory: Path, *texts: str) -> list[Grade]:
    return with_pool(pool, lambda pool: grade_all(pool, directory, *texts))


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Mark the processes of a test; a FIFO tells when a call hangs."""
    monkeypatch.setenv(MARK, str(tmp_path))
    os.mkfifo(tmp_path / "tries")
    return tmp_path


async def one_hangs(directory: Path) -> None:
    await asyncio.to_thread((directory / "tries").read_text)


def test_whatever_functions_do_the_calls_around_them_are_graded_and_nothing_is_left(marked: Path) -> None:
    """One table of deeds, through one pool, with an honest call behind each of them."""
    deeds = [*CAUSES, *NO_NUMBERS, *HALVES, *HALVES]
    texts = [text for number, deed in enumerate(deeds) for text in (f"{deed} {number}", f"honest {number}")]
    for text, grade in zip(texts, obey(pool_of(marked, workers=3), marked, *texts), strict=True):
        name, number = text.split()
        if name == "honest":
            assert grade == Grade(float(number)), text
        elif name in HALVES:
            assert (grade.reward, grade.error) == (0.5, ""), text
        else:
            assert grade.reward == 0, text
            assert grade.error.startswith(CAUSES.get(name, "no reward: ")), text
    assert not left_behind(str(marked))


def test_a_pool_with_several_functions_calls_the_one_that_is_asked_for(tmp_path: Path) -> None:
    names = (OBEY, f"{hostile.__name__}:threads")
    pool = pool_of(tmp_path)
    pool.settings = structs.replace(pool.settings, functions=names)

    async def work(pool: RewardPool) -> list[Verdict]:
        return await asyncio.gather(*(pool.call(name, Problem("?"), Response("honest 7")) for name in names))

    obeyed, counted = with_pool(pool, work)
    assert (obeyed.reward, obeyed.parts) == (7.0, {})
    assert set(counted.parts.values()) == {1.0}


def test_a_call_without_an_end_is_killed_at_its_deadline_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))
    texts = ("leave-and-hang", "burn", "stop", "honest")
    *late, honest = obey(pool_of(tmp_path, workers=3, timeout=1.0), tmp_path, *texts)
    assert {grade.error.partition(";")[0] for grade in late} == {"no answer in 1 s (deadlines.reward)"}
    assert honest == Grade(1.0)
    assert not left_behind(str(tmp_path))


def test_a_pool_that_nobody_asks_is_not_taken_for_one_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arl.reward.pool.GRACE", 0.1)
    lost = asyncio.Event()

    async def work(pool: RewardPool) -> None:
        await pool.call(pool.settings.functions[0], Problem("?"), Response("honest"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):  # several times its silence
                await lost.wait()

    with_pool(pool_of(tmp_path, timeout=0.2, note=lambda text: lost.set()), work)


def test_a_slow_first_call_loses_no_answer_beside_twice_as_many_busy_processes_as_cores(tmp_path: Path) -> None:
    """Each worker starts slowly; two exit, so that others start slowly as well."""
    pool = pool_of(tmp_path, f"{hostile.__name__}:start_slowly", workers=2, timeout=1.5)
    busy = [sys.executable, "-S", "-c", "while True: pass"]
    texts = ["honest", "exit", "honest", "honest"]

    async def work(pool: RewardPool) -> list[Verdict]:
        calls = [pool.call(pool.settings.functions[0], Problem("?"), Response(text)) for text in texts]
        return await asyncio.gather(*calls)

    with contextlib.ExitStack() as stack:
        for _ in range(2 * visible_cores()):
            stack.callback(stack.enter_context(subprocess.Popen(busy)).kill)
        verdicts = with_pool(pool, work)
    assert [verdict.error for verdict in verdicts] == ["", "its process exited with code 9", "", ""]


COMPUTES = """
import torch
from tests.reward.hostile import threads

square = torch.ones(300, 300)
(square @ square).exp().sum()  # by a team of threads, if there were several before the fork


def score(problem, response):
    (square @ square).exp().sum()
    return {"torch": torch.get_num_threads(), **threads(problem, response)}
"""


def test_the_threads_that_a_recipe_gives_hold_for_each_numeric_library_and_outlive_the_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch takes MKL's number, and numpy that of OpenBLAS, before OMP_NUM_THREADS."""
    (tmp_path / "computes.py").write_text(COMPUTES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    async def work(pool: RewardPool) -> Verdict:
        return await pool.call(pool.settings.functions[0], Problem("?"), Response("?"))

    verdict = with_pool(pool_of(tmp_path, f"{hostile.__name__}:threads"), work)
    assert set(verdict.parts.values()) == {1.0}
    verdict = with_pool(pool_of(tmp_path, "computes:score", environment={"OMP_NUM_THREADS": "3"}), work)
    assert set(verdict.parts.values()) == {3.0}, verdict


def test_nothing_is_left_when_the_pool_closes_while_calls_run(marked: Path) -> None:
    async def work(pool: RewardPool) -> None:
        running = asyncio.create_task(grade_all(pool, marked, *["leave-and-hang"] * 4))
        await one_hangs(marked)
        running.cancel()

    with_pool(pool_of(marked, workers=2), work)
    assert not left_behind(str(marked))


SCRIPT = f"""
import sys
from pathlib import Path
from {__name__} import obey, pool_of

directory = Path(sys.argv[1])
obey(pool_of(directory), directory, "leave-and-hang")
"""


def test_a_controller_that_is_killed_leaves_nothing_not_even_what_a_call_has_started(marked: Path) -> None:
    controller = subprocess.Popen([sys.executable, "-c", SCRIPT, str(marked)], cwd=ROOT)
    assert (marked / "tries").read_text() == "x"  # the call hangs, and its sleeper is in a session of its own
    controller.kill()
    controller.wait()
    assert not left_behind(str(marked))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_reward_process_that_dies_or_stops_is_replaced_and_its_calls_are_made_again(
    marked: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    notes: list[str] = []
    pool = pool_of(marked, note=notes.append)
    pool._silence = 1.0

    async def work(pool: RewardPool) -> Grade:
        os.kill(pool.pid, number)
        (grade,) = await grade_all(pool, marked, "honest")
        return grade

    assert with_pool(pool, work) == Grade(1.0)
    assert "it is started again, and makes its 1 calls again" in notes[0]
    assert not left_behind(str(marked))


def test_what_a_function_prints_and_raises_goes_to_the_log_with_one_line_for_each_lost_grade(tmp_path: Path) -> None:
    said: list[str] = []
    obey(pool_of(tmp_path, note=said.append), tmp_path, "shout", *["raise", "nan"] * 5)
    log = (tmp_path / "reward.log").read_text()
    assert "loudloud" in log
    assert log.count("Traceback") == 10  # each is tried twice
    assert log.count("ValueError: cannot judge this (_raise, line") == 5
    first, second = said
    assert str(tmp_path / "reward.log") in first
    assert "the reward is nan" in second


MODULES = {
    "fails": ("raise ValueError('no weights')", ProcessDied, "exited with code 1 while it imported .*; see"),
    "hangs": ("import time; time.sleep(613)", DeadlineError, r"the reward process \(pid \d+\) to import hangs:score"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_function_that_cannot_be_imported_is_told_at_the_start(
    marked: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    code, error, message = MODULES[name]
    (marked / f"{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(marked), prepend=os.pathsep)
    with pytest.raises(error, match=message):
        obey(pool_of(marked, f"{name}:score", startup=PATIENT if error is ProcessDied else 1.0), marked)
    assert not left_behind(str(marked))
    log = (marked / "reward.log").read_text()
    assert ("no weights" if name == "fails" else "") in log
