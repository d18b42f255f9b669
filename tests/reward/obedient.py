"""Open pools of real workers whose function does what a response commands."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

import psutil

from arl.reward.pool import RewardPool
from arl.reward.scorer import Scorer
from arl.reward.ungraded import UngradedLog
from arl.types import Grade, Problem, Response
from tests.processes import MARK
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


def the_worker() -> psutil.Process:
    """The pool's one worker; other tests leave other children."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            if "arl.reward.worker" in child.cmdline():
                found.append(child)
    (worker,) = found
    return worker
