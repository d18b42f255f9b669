"""Start and use lanes: processes of a worker that call reward functions one after the other, and may be lost.

    worker ─ fork ─► keeper ─ fork ─► lane: own process group, bounded memory, no socket to the controller

Several calls may be sent at once, so that a lane makes them without waiting for its worker in between.

A fork costs milliseconds, because the worker has imported everything. So a lane that hangs, dies or answers nonsense is
killed with all that it started (arl.reward.leftovers), and another one takes its place.
"""

import contextlib
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from arl.launch.frames import FrameError, FrameReader, decode, frame
from arl.launch.process_state import describe_exit
from arl.reward.grading import RewardCallable
from arl.reward.lane_process import CLOSED, LIMITED, LIMITS_LOWERED, PID_BYTES, Private, run
from arl.reward.leftovers import descendants
from arl.reward.limits import LimitWatch
from arl.reward.messages import LONGEST_ANSWER, READ_BYTES, READY, Answer, RewardCall, Verdict, fault_in
from arl.reward.work_timer import WorkTimer

CLOSED_ITSELF = "it closed the file descriptors of its process"
START_SECONDS = 10.0  # for a lane to be forked
REAP_SECONDS = 2.0  # for a lane that has closed its connection, or was killed, to be gone with what it has left
NICEST = 19


class LaneError(Exception):
    """Report that a lane cannot answer its call. The message is the cause."""


class Lane:
    """Hold one lane, as its worker sees it: its processes, the connection to it, and the calls that it makes in order.

    Args:
        keeper: process id of the parent of the lane, which is a child of the worker.
        pid: process id of the lane.
    """

    def __init__(self, keeper: int, pid: int, connection: socket.socket) -> None:
        self.keeper = keeper
        self.pid = pid
        self.connection = connection
        self.calls: deque[RewardCall] = deque()  # sent and not answered; the first one runs
        self.is_up = False  # it has started, and makes calls
        self._timer = WorkTimer(pid)  # of the call that runs
        self._frames = FrameReader(LONGEST_ANSWER)
        self._unsent = b""

    @classmethod
    def fork(
        cls,
        functions: Sequence[RewardCallable],
        memory_gb: float,
        private: Iterable[Private],
        limits: LimitWatch,
    ) -> "Lane":
        """Start a lane, which calls `functions`.

        Args:
            memory_gb: that it may allocate beyond what the worker holds.
            private: connections of the worker, and what waits for them, that the lane must not have.
            limits: of the worker, which the lane must have as well.

        Raises:
            OSError: there is no process or no memory for it.
        """
        ours, theirs = socket.socketpair()
        worker = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            keeper = os.fork()
            if keeper == 0:
                run(functions, memory_gb, [ours, *private], theirs, limits, worker)
            theirs.close()
            pid = _receive_pid(ours)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        ours.setblocking(False)
        return cls(keeper, pid, ours)

    @property
    def wants_to_send(self) -> bool:
        """Return whether a part of the call is not sent yet."""
        return bool(self._unsent)

    @property
    def call(self) -> RewardCall | None:
        """Return the call that runs, if one does."""
        return self.calls[0] if self.calls else None

    @property
    def seconds(self) -> float:
        """Return how long the call has been running."""
        return self._timer.elapsed

    @property
    def seconds_at_work(self) -> float:
        """Return the same without what it waited for a core, which says nothing of the call."""
        return self._timer.seconds

    def seconds_until(self, limit: float) -> float:
        """Return how long the call may go on, at least, until it has been at work for `limit` seconds."""
        left = limit - self.seconds
        return left if left > 0 else limit - self.seconds_at_work  # which takes a look at a file

    def add(self, call: RewardCall) -> None:
        """Send a call, which runs after those that were sent before."""
        if not self.calls:
            self._timer.start()
        self.calls.append(call)
        self._unsent += frame(call)
        self.send()

    def take_back(self) -> list[RewardCall]:
        """Return the calls behind the one that runs; the lane may begin with them, and nobody hears of it."""
        first, *others = self.calls
        self.calls = deque([first])
        return others

    def send(self) -> None:
        """Send as much of the call as the lane takes; it may have stopped reading."""
        with contextlib.suppress(BlockingIOError, ConnectionError):  # `receive` finds a broken connection
            sent = self.connection.send(self._unsent)
            self._unsent = self._unsent[sent:]

    def receive(self) -> Iterator[tuple[RewardCall, Verdict, float]]:
        """Yield the calls whose answers have arrived, with their verdicts and the seconds that they were at work.

        Of answers that arrive together, all but the first were quick, and have 0 seconds.

        Raises:
            LaneError: it died, closed the connection, or sent something else than the answers to its calls in order.
        """
        try:
            data = self.connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            raise self._end()
        for answer in self._decode(data):
            if answer.id == READY and not self.is_up:
                self.is_up = True
                self._timer.start()  # its start says nothing of the first call
                continue
            if self.call is None or answer.id != self.call.id or answer.verdict is None:
                raise LaneError("more than one answer: something else wrote to the lane's connection")
            fault = fault_in(answer.verdict)
            if fault:
                raise LaneError(f"something else wrote to the lane's connection: {fault}")
            seconds = self._timer.lap()
            call = self.calls.popleft()
            yield call, answer.verdict, seconds

    def _decode(self, data: bytes) -> Iterator[Answer]:
        """Yield each answer before the next one is looked at: what a later call has written spoils none before it."""
        try:
            for body in self._frames.feed(data):
                yield decode(body, Answer)
        except FrameError as error:
            raise LaneError(f"something else wrote to the lane's connection ({error})") from error

    def make_nice(self) -> None:
        """Let its processes compute only where nobody else wants to."""
        for pid in descendants(self.keeper):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.setpriority(os.PRIO_PROCESS, pid, NICEST)

    def wake(self) -> None:
        """Let it go on if a signal has stopped it; otherwise it does not notice."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill its keeper, and reap that. The lane itself, and what it has started, are then children of the worker."""
        self.connection.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.keeper, signal.SIGKILL)
        self._reap()

    def _end(self) -> LaneError:
        """Return the error of a lane that has closed its connection."""
        with contextlib.suppress(ProcessLookupError):  # a program may have stopped its keeper
            os.kill(self.keeper, signal.SIGCONT)
        status = self._reap()
        code = CLOSED if status is None else os.waitstatus_to_exitcode(status)
        if code == CLOSED:
            return LaneError(CLOSED_ITSELF)
        if code == LIMITED:
            return LaneError(LIMITS_LOWERED)
        hint = ", from outside or because memory was short" if code == -signal.SIGKILL else ""
        return LaneError(f"its process {describe_exit(code)}{hint}")

    def _reap(self) -> int | None:
        """Return how the keeper has ended; None if it still runs after two seconds, or was reaped before."""
        end = time.monotonic() + REAP_SECONDS
        while time.monotonic() < end:
            try:
                pid, status = os.waitpid(self.keeper, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid:
                return status
            time.sleep(0.001)
        return None


def _receive_pid(connection: socket.socket) -> int:
    """Return the process id that a new lane sends.

    Raises:
        OSError: there is no process for it.
    """
    connection.settimeout(START_SECONDS)
    data = connection.recv(PID_BYTES, socket.MSG_WAITALL)
    if len(data) < PID_BYTES:
        raise OSError("the process of a lane cannot be started; its log says why")
    return int.from_bytes(data)
