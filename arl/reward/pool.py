"""Rewards in worker processes, each call with a deadline; a worker that hangs or dies is replaced.

score(problem, responses) ─► an idle worker ─► Verdict        hang or death ─► RewardError, new worker
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from arl.clock import deadline
from arl.errors import DeadlineError, RewardError, RunError
from arl.launch.child import PARENT
from arl.reward.worker import Job, RewardFunction, Verdict, frame, score_all
from arl.types import Problem

_verdicts = msgspec.msgpack.Decoder(Verdict)


class _Worker:
    """One process, and the socket to it."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer

    async def read(self) -> bytes:
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return await self._reader.readexactly(size)

    async def ask(self, job: Job) -> Verdict:
        self._writer.write(frame(job))
        await self._writer.drain()
        return _verdicts.decode(await self.read())

    async def end(self) -> None:
        """Kill it with everything it started, and reap it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._writer.close()
        await self._process.wait()


class RewardPool:
    """`workers` processes that import `function` and score one group at a time each.

    Args:
        timeout: seconds for one call of the function
        startup: seconds for a new worker to import it

    Raises (from score):
        RewardError: the function raised, hung past its time, killed its process, or returned no number.
    """

    def __init__(self, function: str, workers: int, timeout: float, startup: float, log: Path) -> None:
        self._function, self._size, self._log = function, workers, log
        self._timeout, self._startup = timeout, startup
        self._idle: asyncio.Queue[_Worker | RunError] = asyncio.Queue()
        self._all: set[_Worker] = set()
        self._replacements: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(*(self._add_worker() for _ in range(self._size)))
        except BaseException:
            await self._end_all()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        await self._end_all()  # a replacement that still starts hears of it by the end of its worker
        await asyncio.gather(*self._replacements)
        await self._end_all()

    async def score(self, problem: Problem, responses: Sequence[str], truncated: Sequence[bool]) -> list[float]:
        # A busy worker is back within its time and a lost one is replaced, so a line of jobs moves.
        worker = await self._idle.get()
        if isinstance(worker, RunError):
            self._idle.put_nowait(worker)  # everybody in line must hear it
            raise worker
        try:
            verdict = await self._ask(worker, Job(problem, list(responses), list(truncated)))
        except BaseException:
            self._replace(worker)  # its pipe may hold half an answer
            raise
        self._idle.put_nowait(worker)
        if verdict.error:
            raise RewardError(f"{self._function} on problem {problem.id}: {verdict.error}")
        return verdict.scores

    async def _ask(self, worker: _Worker, job: Job) -> Verdict:
        place, seconds = f"{self._function} on problem {job.problem.id}", self._timeout * len(job.responses)
        try:
            async with deadline(seconds, "reward worker", place):
                return await worker.ask(job)
        except DeadlineError as error:
            calls = f"{len(job.responses)} calls of {self._timeout:g} s each (deadlines.reward)"
            raise RewardError(f"{place}: no answer in the time of {calls}") from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise RewardError(f"{place}: its process died; see {self._log}") from error

    def _replace(self, worker: _Worker) -> None:
        replacement = asyncio.create_task(self._exchange(worker), name="new reward worker")
        self._replacements.add(replacement)
        replacement.add_done_callback(self._replacements.discard)

    async def _exchange(self, worker: _Worker) -> None:
        await worker.end()
        self._all.discard(worker)
        try:
            if not self._closed:
                await self._add_worker()
        except RunError as error:
            self._idle.put_nowait(error)

    async def _add_worker(self) -> None:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=ours)
        with self._log.open("ab") as log, theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "arl.reward.worker", self._function),
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                env={**os.environ, PARENT: str(os.getpid())},
                start_new_session=True,  # Ctrl-C is the controller's to handle, and a worker has a group to kill
            )
        worker = _Worker(process, reader, writer)
        self._all.add(worker)
        try:
            async with deadline(self._startup, "reward pool", f"a worker to import {self._function}"):
                assert await worker.read() == b"", "a new worker says one empty frame"
        except asyncio.IncompleteReadError as error:
            raise RewardError(f"{self._function}: a worker died at its start; see {self._log}") from error
        self._idle.put_nowait(worker)

    async def _end_all(self) -> None:
        for worker in list(self._all):
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
