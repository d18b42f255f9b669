"""Have a reward function called in processes of its own, one response a call, with a deadline for each call.

    Scorer ─► call(function, problem, response) ─► zygote ─► a worker (arl.reward.worker) ─► Verdict
                                                     └─ lost: another one is started, and its calls are made again

A response is graded on its own: one that makes its function hang or die costs its own episode at most. The processes
run on the controller's machine, because the zygote shares a socket with it.
"""

import asyncio
import contextlib
import itertools
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from arl.clock import deadline
from arl.errors import ProcessDied, printable
from arl.files import writing
from arl.launch.process import open_log
from arl.launch.spawn import describe_exit, describe_state, signal_all, spawn
from arl.reward.grading import Verdict
from arl.reward.scorer import UngradedLog
from arl.reward.worker import READ_BYTES, READY, Answer, FrameReader, RewardCall, Settings, frame
from arl.types import Problem, Response

TRIES = 2  # of a call
GRACE = 10.0  # seconds beyond the deadlines of a call, after which a silent zygote is lost
END_SECONDS = 10.0  # for a zygote to kill what it has started, and exit
THREADS = "OMP_NUM_THREADS"  # of a worker: 1 unless given, because each would take all cores
FOLLOWING = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # libraries prefer their own; torch then takes MKL's for both


@dataclass
class _OpenCall:
    """Hold a call until its verdict is known."""

    framed: bytes
    verdict: asyncio.Future[Verdict]
    tries: int = 1


@dataclass(eq=False)
class RewardPool:
    """Keep a zygote that has imported the functions of its settings, and its workers.

        async with RewardPool(Settings(("my_rewards:score",), workers=4, timeout=10.0, memory_gb=4.0), …) as pool:
            verdict = await pool.call("my_rewards:score", problem, response)

    Args:
        settings: what may be called, by how many workers, and within which bounds.
        startup: seconds to import the functions.
        log: file for the output of all processes.
        environment: variables that are added to those of this process.
        ungraded: keeps a record of episodes without a grade.

    Raises (from entering it, and from every call once a lost zygote cannot be replaced):
        ProcessDied: the zygote died while it imported the functions.
        DeadlineError: it did not import the functions in time.
    """

    settings: Settings
    startup: float
    log: Path
    environment: Mapping[str, str]
    ungraded: UngradedLog

    def __post_init__(self) -> None:
        self._silence = TRIES * self.settings.timeout + GRACE
        self._ids = itertools.count(READY + 1)
        self._open: dict[int, _OpenCall] = {}
        self._failure: Exception | None = None  # why the zygote could not be replaced

    async def __aenter__(self) -> Self:
        await self._start()
        self._task = asyncio.create_task(self._serve(), name="reward pool")
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._end(END_SECONDS)

    @property
    def pid(self) -> int:
        """Return the process id of the zygote."""
        return self._process.pid

    @property
    def num_open(self) -> int:
        """Return how many calls have no answer yet."""
        return len(self._open)

    async def call(self, function: str, problem: Problem, response: Response) -> Verdict:
        """Call `function`, which is one of the settings, and return its verdict.

        A problem that no message can hold, such as one that an env has changed, is an error of its verdict.
        """
        assert function in self.settings.functions, f"{function} is not of this pool"
        call = RewardCall(next(self._ids), function, problem, response)
        try:
            framed = frame(call)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            return Verdict(error=f"it cannot be sent to a reward worker ({printable(str(error))[:300]})")
        if self._failure is not None:
            raise self._failure
        opened = _OpenCall(framed, asyncio.get_running_loop().create_future())
        self._open[call.id] = opened
        if not self._writer.is_closing():  # else the next zygote gets it, with all open calls
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
                code = await self._end(0.0 if why else END_SECONDS)
                lost = f"the reward process (pid {self.pid}) {why or describe_exit(code)}"
                self.ungraded.note(f"{lost}; it is started again, and makes its {self.num_open} calls again")
                await self._start()
                for opened in self._open.values():
                    opened.tries += 1
                    if opened.tries <= TRIES:
                        self._writer.write(opened.framed)
                    elif not opened.verdict.done():
                        opened.verdict.set_result(Verdict(error=lost))
        except Exception as error:  # whatever it is, those that wait for a verdict must get it
            self._failure = error
            for opened in self._open.values():
                if not opened.verdict.done():
                    opened.verdict.set_exception(error)

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
                    return f"{describe_state(self.pid)}, and has said nothing for {self._silence:.0f} s"
                continue
            except ConnectionError:
                return ""
            if not data:
                return ""
            for body in frames.feed(data):
                answer = msgspec.msgpack.decode(body, type=Answer)
                # At once, and not when the caller wakes: an idle zygote owes nothing. None: the call was canceled.
                opened = self._open.pop(answer.id, None)
                if opened is not None and not opened.verdict.done():
                    opened.verdict.set_result(answer.verdict)

    async def _start(self) -> None:
        """Start a zygote, and wait until it has imported the functions. Raises what the class says."""
        name = ", ".join(self.settings.functions)
        command = (sys.executable, "-m", "arl.reward.worker", msgspec.json.encode(self.settings).decode())
        threads = self.environment.get(THREADS, "1")
        environment = {**dict.fromkeys((THREADS, *FOLLOWING), threads), **self.environment}
        ours, theirs = socket.socketpair()
        self._reader, self._writer = await asyncio.open_connection(sock=ours)
        with theirs, writing(self.log), open_log(self.log) as log:
            self._process = await spawn(command, environment, stdin=theirs.fileno(), output=log.fileno())
        who = f"the reward process (pid {self.pid})"
        try:
            async with deadline(self.startup, "reward pool", f"{who} to import {name}"):
                await self._reader.readexactly(len(frame(Answer(READY))))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            how = describe_exit(await self._end(END_SECONDS))
            raise ProcessDied(f"{who} {how} while it imported {name}; see {self.log}") from error
        except BaseException:  # also a cancellation
            await self._end(0.0)
            raise

    async def _end(self, seconds: float) -> int:
        """End the zygote with everything below it, and return its exit code.

        Args:
            seconds: in which it may do so itself, because it finds what its workers have started.
        """
        self._writer.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._process.wait()
        signal_all(self._process, signal.SIGKILL)
        return await self._process.wait()
