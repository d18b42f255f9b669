"""Rewards in worker processes, each call with a deadline; a worker that hangs or dies is replaced.

score(problem, responses) ─► an idle worker ─► Verdict        hang or death ─► RewardError, new worker
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from arl.clock import deadline
from arl.errors import DeadlineError, RewardError
from arl.orphan import PARENT
from arl.reward.worker import Job, RewardFunction, Verdict, frame, score_all
from arl.types import Problem


class _Worker:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._jobs, self._verdicts = process.stdin, process.stdout
        self._decoder = msgspec.msgpack.Decoder(Verdict)

    async def ask(self, job: Job) -> Verdict:
        self._jobs.write(frame(job))
        await self._jobs.drain()
        size = int.from_bytes(await self._verdicts.readexactly(4), "big")
        return self._decoder.decode(await self._verdicts.readexactly(size))

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


class RewardPool:
    """`workers` processes that import `function` and score one group at a time each.

    Raises (from score):
        RewardError: the function raised, hung past `timeout` seconds, killed its process, or returned no number.
    """

    def __init__(self, function: str, workers: int, timeout: float, log: Path) -> None:
        self._function, self._size, self._timeout, self._log = function, workers, timeout, log
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        self._all: set[_Worker] = set()

    async def __aenter__(self) -> Self:
        for _ in range(self._size):
            self._idle.put_nowait(await self._start())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in list(self._all):
            await self._end(worker)

    async def score(self, problem: Problem, responses: Sequence[str], truncated: Sequence[bool]) -> list[float]:
        # Every busy worker is back within one timeout, so a queue of jobs moves; the controller bounds its length.
        worker = await self._idle.get()
        try:
            verdict = await self._ask(worker, Job(problem, list(responses), list(truncated)))
        except BaseException:
            await self._end(worker)  # its pipe may hold half an answer
            worker = await self._start()
            raise
        finally:
            self._idle.put_nowait(worker)
        if verdict.error:
            raise RewardError(f"{self._function} on problem {problem.id}: {verdict.error}")
        return verdict.scores

    async def _ask(self, worker: _Worker, job: Job) -> Verdict:
        place = f"{self._function} on problem {job.problem.id}"
        try:
            async with deadline(self._timeout, "reward worker", place):
                return await worker.ask(job)
        except DeadlineError as error:
            raise RewardError(f"{place}: no answer in {self._timeout:g} s (deadlines.reward)") from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise RewardError(f"{place}: its process died; see {self._log}") from error

    async def _start(self) -> _Worker:
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "arl.reward.worker", self._function),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, PARENT: str(os.getpid())},
                start_new_session=True,  # Ctrl-C is the controller's to handle
            )
        worker = _Worker(process)
        self._all.add(worker)
        return worker

    async def _end(self, worker: _Worker) -> None:
        self._all.discard(worker)
        await worker.end()


class InlineRewards:
    """The same function called in place: for virtual time, where there are no processes."""

    def __init__(self, function: RewardFunction) -> None:
        self._function = function

    async def score(self, problem: Problem, responses: Sequence[str], truncated: Sequence[bool]) -> list[float]:
        verdict = score_all(self._function, Job(problem, list(responses), list(truncated)))
        if verdict.error:
            raise RewardError(verdict.error)
        return verdict.scores
