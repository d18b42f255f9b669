"""Have reward functions called in processes of their own, one response a call, with a deadline for each call.

    Scorer ─► call(function, problem, response) ─► zygote ─► a worker (arl.reward.worker) ─► Verdict
                                                     └─ lost: another one is started, and its calls are made again

A response is graded on its own: one that makes its function hang or die costs its own episode at most. The processes
run on the controller's machine, because the zygote shares a socket with it.
"""

import asyncio
import contextlib
import itertools
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from arl.clock import deadline
from arl.errors import DeadlineError, ProcessDied, printable
from arl.files import writing
from arl.launch.frames import FrameReader, decode, frame
from arl.launch.process import open_log
from arl.launch.spawn import describe_exit, describe_state, kill_session, spawn
from arl.reward.grading import Verdict
from arl.reward.scorer import NO_WEIGHTS, OnError, Scorer, UngradedLog
from arl.reward.worker import READ_BYTES, READY, Answer, RewardCall, Settings
from arl.types import Problem, Response

TRIES = 2  # of a call
OPEN_CALLS = 16  # of a worker, so that it waits for no event loop between two of them
GRACE = 10.0  # seconds beyond the deadlines of a call, after which a silent zygote is lost
END_SECONDS = 10.0  # for a zygote to kill what it has started, and exit
CANNOT_SEND = "it cannot be sent to a reward worker"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # else all cores, each


@dataclass
class _OpenCall:
    """Hold a call until its verdict is known."""

    framed: bytes
    verdict: asyncio.Future[Verdict]
    tries: int = 1


class RewardPool:
    """Keep a zygote that has imported `functions`, and its `workers` processes.

        async with RewardPool(["my_rewards:score"], workers=4, timeout=10.0, memory_gb=4.0, …) as pool:
            grade = await pool.scorer("my_rewards:score").score(problem, response)

    Args:
        functions: module:function of each that may be called.
        workers: processes, each of which makes one call at a time.
        timeout: seconds for one call.
        memory_gb: that one call may allocate.
        startup: seconds to import the functions.
        log: file for the output of all processes.
        environment: variables that are added to those of this process.
        ungraded: keeps a record of episodes without a grade.

    Raises (from entering it, and from every call once a lost zygote cannot be replaced):
        ProcessDied: the zygote cannot be started, or died while it imported the functions.
        DeadlineError: it did not import them in time.
    """

    def __init__(
        self,
        functions: Sequence[str],
        *,
        workers: int,
        timeout: float,
        memory_gb: float,
        startup: float,
        log: Path,
        environment: Mapping[str, str],
        ungraded: UngradedLog,
    ) -> None:
        self._functions = list(dict.fromkeys(functions))
        self._settings = Settings(tuple(self._functions), workers, timeout, memory_gb)
        self._silence = TRIES * timeout + GRACE
        self._startup = startup
        self._log = log
        self._output: BinaryIO | None = None  # while it is entered
        self._environment = {**ONE_THREAD, **environment}
        self._ungraded = ungraded
        self._slots = asyncio.Semaphore(OPEN_CALLS * workers)
        self._ids = itertools.count(READY + 1)
        self._open: dict[int, _OpenCall] = {}
        self._failure: Exception | None = None  # why the zygote could not be replaced
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        with writing(self._log):
            self._output = open_log(self._log)
        try:
            await self._start()
        except BaseException:
            self._output.close()
            raise
        self._task = asyncio.create_task(self._serve(), name="reward pool")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        assert self._output is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._end(END_SECONDS)
        self._output.close()

    def scorer(self, function: str, weights: Mapping[str, float] = NO_WEIGHTS, on_error: OnError = "zero") -> Scorer:
        """Make a scorer of one of the functions; see Scorer."""
        return Scorer(self, function, weights, on_error, self._ungraded)

    @property
    def pid(self) -> int | None:
        """Return the process id of the zygote; None: it is being started."""
        return None if self._process is None else self._process.pid

    @property
    def num_open(self) -> int:
        """Return how many calls have no answer yet."""
        return len(self._open)

    async def call(self, function: str, problem: Problem, response: Response) -> Verdict:
        """Call `function`, which is one of `functions`, and return its verdict.

        A problem that no message can hold, such as one that an env has changed, is an error of its verdict.
        """
        call = RewardCall(next(self._ids), self._functions.index(function), problem, response)
        try:
            framed = frame(call)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return Verdict(error=f"{CANNOT_SEND} ({printable(str(error))[:300]})")
        async with self._slots:
            if self._failure is not None:
                raise self._failure
            opened = _OpenCall(framed, asyncio.get_running_loop().create_future())
            self._open[call.id] = opened
            self._writer.write(framed)
            try:
                # This wait needs no deadline: the zygote is watched, and a lost one is replaced.
                return await opened.verdict
            finally:
                self._open.pop(call.id, None)

    # ---- the zygote

    async def _serve(self) -> None:
        """Settle calls, and replace a zygote that has died or hangs."""
        try:
            while True:
                why = await self._settle_calls()
                pid = self.pid
                code = await self._end(0.0 if why else END_SECONDS)
                lost = f"the reward process (pid {pid}) {why or describe_exit(code)}"
                self._ungraded.note(f"{lost}; it is started again, and makes its {len(self._open)} calls again")
                await self._start()
                self._send_again(lost)
        except Exception as error:  # whatever it is, those that wait for a verdict must get it
            self._fail(error)

    async def _settle_calls(self) -> str:
        """Settle calls until the zygote is lost.

        A zygote that owes an answer says something within the deadlines of a call. Unblocked by it, or by the clock.

        Returns:
            Why it is lost; empty: its connection has ended.
        """
        frames = FrameReader()
        while True:
            owes_answer = bool(self._open)
            try:
                async with asyncio.timeout(self._silence):
                    data = await self._reader.read(READ_BYTES)
            except TimeoutError:
                if owes_answer:
                    return f"{self._state()}, and has said nothing for {self._silence:.0f} s"
                continue
            except ConnectionError:
                return ""
            if not data:
                return ""
            for body in frames.feed(data):
                answer = decode(body, Answer)
                opened = self._open.get(answer.id)  # None: the call was canceled
                if opened is not None and not opened.verdict.done():
                    opened.verdict.set_result(answer.verdict)

    def _send_again(self, lost: str) -> None:
        """Send the open calls to a new zygote, those excepted that were lost too often."""
        for opened in list(self._open.values()):
            opened.tries += 1
            if opened.tries <= TRIES:
                self._writer.write(opened.framed)
            elif not opened.verdict.done():
                opened.verdict.set_result(Verdict(error=lost))

    def _fail(self, error: Exception) -> None:
        """Raise `error` where verdicts are awaited, now and later."""
        self._failure = error
        for opened in self._open.values():
            if not opened.verdict.done():
                opened.verdict.set_exception(error)

    def _state(self) -> str:
        return describe_state(self.pid or 0)

    async def _start(self) -> None:
        """Start a zygote, and wait until it has imported the functions. Raises what the class says."""
        names = ", ".join(self._functions)
        assert self._output is not None
        command = (sys.executable, "-m", "arl.reward.worker", msgspec.json.encode(self._settings).decode())
        ours, theirs = socket.socketpair()
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        with theirs:
            try:
                self._process = await spawn(
                    command, self._environment, stdin=theirs.fileno(), output=self._output.fileno()
                )
            except OSError as error:
                raise ProcessDied(f"the reward process for {names} cannot be started ({error})") from error
        who = f"the reward process (pid {self._process.pid})"
        try:
            async with deadline(self._startup, "reward pool", f"{who} to import {names}"):
                await self._reader.readexactly(len(frame(Answer(READY))))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            how = describe_exit(await self._end(END_SECONDS))
            raise ProcessDied(f"{who} {how} while it imported {names}; see {self._log}") from error
        except BaseException as error:  # also a cancellation
            state = self._state()
            await self._end(0.0)
            if isinstance(error, DeadlineError):
                raise DeadlineError(f"{error}\n{who} {state}.") from error
            raise

    async def _end(self, seconds: float) -> int:
        """End the zygote with everything below it, and return its exit code.

        Args:
            seconds: in which it may do so itself, because it finds what its workers have started.
        """
        self._writer.close()
        if self._process is None:
            return 0
        process = self._process
        self._process = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()
        kill_session(process)
        return await process.wait()
