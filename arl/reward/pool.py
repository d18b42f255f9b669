"""Score groups in worker processes, each call with a deadline; replace a worker that hangs or dies.

    score(problem, responses) ─► an idle worker ─► Verdict ─► grades
                                     │
                                     └ it hangs or dies ─► RewardError, and a new worker in its place

Workers run on the controller's machine, because each shares a socket with it.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from arl.clock import deadline
from arl.errors import DeadlineError, RewardError
from arl.launch.spawn import signal_all, spawn
from arl.reward.worker import Job, Score, Verdict, frame, score_all
from arl.types import Grade, Problem, Response

_verdicts = msgspec.msgpack.Decoder(Verdict)


class _Worker:
    """Hold one worker process and the socket to it."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, function: str, environment: Mapping[str, str], log: Path) -> "_Worker":
        """Start a worker that imports `function`; its output is added to `log`."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                with log.open("ab") as output:
                    process = await spawn(
                        (sys.executable, "-m", "arl.reward.worker", function),
                        environment,
                        stdin=theirs.fileno(),
                        output=output.fileno(),
                    )
            except BaseException:
                writer.close()
                raise
        return cls(process, reader, writer)

    async def read(self) -> bytes:
        """Return the next frame.

        Raises:
            IncompleteReadError: the process has ended.
        """
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        return await self._reader.readexactly(size)

    async def ask(self, job: Job) -> Verdict:
        """Send a job and return the answer."""
        self._writer.write(frame(job))
        await self._writer.drain()
        return _verdicts.decode(await self.read())

    async def end(self) -> None:
        """Kill the process with everything that it started, and reap it."""
        signal_all(self._process, signal.SIGKILL)
        self._writer.close()
        await self._process.wait()


class RewardPool:
    """Keep `workers` processes that import `function` and score one group at a time each.

        pool = RewardPool(
            "my_rewards:score",
            workers=4,
            timeout=10.0,
            startup=120.0,
            log=logs / "reward.log",
            environment={},
        )
        async with pool:
            grades = await pool.score(problem, responses)

    Args:
        function: module:function.
        workers: processes.
        timeout: seconds for one call of the function.
        startup: seconds for a new worker to import it.
        log: file for the output of all workers.
        environment: variables that are added to those of this process.

    Raises (from score):
        RewardError: the function raised, hung past its time, killed its process, or returned no finite number.
    """

    def __init__(
        self,
        function: str,
        *,
        workers: int,
        timeout: float,
        startup: float,
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        self._function = function
        self._num_workers = workers
        self._timeout = timeout
        self._startup = startup
        self._log = log
        self._environment = environment
        self._idle: asyncio.Queue[_Worker | Exception] = asyncio.Queue()  # an exception: a worker is not replaced
        self._all: set[_Worker] = set()
        self._replacements: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        starts = [self._add_worker() for _ in range(self._num_workers)]
        try:
            # Waits for every start, also if one fails, so that no process begins after the others were ended.
            outcomes = await asyncio.gather(*starts, return_exceptions=True)
            failures = [outcome for outcome in outcomes if outcome is not None]
            if failures:
                raise failures[0]
        except BaseException:
            await self._end_all()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        await self._end_all()  # ends as well the wait of a replacement whose worker has just been started
        await asyncio.gather(*self._replacements)
        await self._end_all()

    async def score(self, problem: Problem, responses: Sequence[Response]) -> list[Grade]:
        """Score the responses of one group.

        Raises:
            RewardError: see the class.
        """
        # This wait needs no deadline: a busy worker is back within its time, and a lost one is replaced.
        worker = await self._idle.get()
        if isinstance(worker, Exception):
            self._idle.put_nowait(worker)  # every waiting caller must get it
            raise worker
        job = Job(problem, list(responses))
        try:
            verdict = await self._ask(worker, job)
        except BaseException:
            self._replace(worker)  # its socket may hold half an answer
            raise
        self._idle.put_nowait(worker)
        if verdict.error:
            raise RewardError(f"{self._function} on problem {problem.id}: {verdict.error}")
        return verdict.grades

    async def _ask(self, worker: _Worker, job: Job) -> Verdict:
        place = f"{self._function} on problem {job.problem.id}"
        seconds = self._timeout * len(job.responses)
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
        """End a worker and start another one in its place, unless the pool is closed."""
        await worker.end()
        self._all.discard(worker)
        try:
            if not self._closed:
                await self._add_worker()
        except Exception as error:  # whatever it is, a caller that waits for a worker must get it
            self._idle.put_nowait(error)

    async def _add_worker(self) -> None:
        """Start a worker, and hand it out when it has imported the function."""
        try:
            worker = await _Worker.start(self._function, self._environment, self._log)
        except OSError as error:
            raise RewardError(f"{self._function}: a reward worker cannot be started ({error})") from error
        self._all.add(worker)
        try:
            async with deadline(self._startup, "reward pool", f"a worker to import {self._function}"):
                assert await worker.read() == b"", "a new worker sends an empty frame"
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise RewardError(f"{self._function}: a worker died at its start; see {self._log}") from error
        self._idle.put_nowait(worker)

    async def _end_all(self) -> None:
        for worker in list(self._all):
            await worker.end()


class InlineRewards:
    """Call the function in this process: for virtual time, where there are no others."""

    def __init__(self, function: Score) -> None:
        self._function = function

    async def score(self, problem: Problem, responses: Sequence[Response]) -> list[Grade]:
        """Score the responses of one group.

        Raises:
            RewardError: the function raised, or returned no finite number.
        """
        job = Job(problem, list(responses))
        verdict = score_all(self._function, job)
        if verdict.error:
            raise RewardError(f"problem {problem.id}: {verdict.error}")
        return verdict.grades
