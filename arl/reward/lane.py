"""Run calls of reward functions one after the other in a child process of a worker, a lane, which may be lost.

    worker ─ fork ─► lane: function in its main thread, own process group, bounded memory, no socket to the controller

Several calls may be sent at once, so that a lane makes them without waiting for its worker in between.

A fork costs milliseconds, because the worker has imported everything. So a lane that hangs, dies or answers nonsense is
killed with all that it started, and another one takes its place.
"""

import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from selectors import BaseSelector
from typing import NoReturn

import msgspec

from arl.launch.child import die_with
from arl.launch.frames import FrameError, FrameReader, decode, frame
from arl.reward.grading import RewardCallable, judge
from arl.reward.messages import LONGEST_ANSWER, READY, Answer, RewardCall, Verdict, fault_in
from arl.reward.work_timer import WorkTimer

READ_BYTES = 1 << 16
CLOSED_ITSELF = "it closed the file descriptors of its process"
REAP_SECONDS = 1.0  # for a process that has closed its connection, or was killed, to be gone
NICEST = 19
CLOSED = 120  # exit code of a lane that cannot send its answer


class LaneError(Exception):
    """Report that a lane cannot answer its call. The message is the cause."""


class Lane:
    """Hold one lane, as its worker sees it: the process, the connection to it, and the calls that it makes in order."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
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
        private: Iterable[socket.socket | BaseSelector],
    ) -> "Lane":
        """Start a lane, which calls `functions`.

        Args:
            memory_gb: that it may allocate beyond what the worker holds.
            private: connections of the worker, and what waits for them, that the lane must not have.

        Raises:
            OSError: there is no process or no memory for it.
        """
        ours, theirs = socket.socketpair()
        worker = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except BaseException:
            ours.close()
            theirs.close()
            raise
        if pid == 0:
            _run(functions, memory_gb, worker, [ours, *private], theirs)
        theirs.close()
        with contextlib.suppress(OSError):  # it has done so itself, or is gone already
            os.setpgid(pid, pid)
        ours.setblocking(False)
        return cls(pid, ours)

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
            raise LaneError(self._how_it_ended())
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
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpriority(os.PRIO_PGRP, self.pid, NICEST)

    def kill(self) -> None:
        """Kill it with its process group, and reap it."""
        self.connection.close()
        for kill in (os.killpg, os.kill):  # a function may have moved its process to another group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)
        self._reap()

    def _how_it_ended(self) -> str:
        status = self._reap()
        if status is None:
            return CLOSED_ITSELF
        code = os.waitstatus_to_exitcode(status)
        if code == CLOSED:
            return CLOSED_ITSELF
        if code >= 0:
            return f"its process exited with code {code}"
        hint = ": killed from outside, or out of memory" if -code == signal.SIGKILL else ""
        return f"its process died with {signal.Signals(-code).name}{hint}"

    def _reap(self) -> int | None:
        """Return the exit status of the process; None if it still runs after a second, or was reaped before."""
        end = time.monotonic() + REAP_SECONDS
        while time.monotonic() < end:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid:
                return status
            time.sleep(0.001)
        return None


class Orphans:
    """Find processes that lanes have left to the worker (arl.launch.child.adopt_orphans), and reap or kill them."""

    MOST_ROUNDS = 100  # of killing, each of which may hand the worker the children of those killed

    def reap(self, lanes: Iterable[int]) -> None:
        """Reap orphans that have exited; `lanes` are the pids of the lanes that are in use."""
        for pid in self._all(lanes):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def kill(self, lanes: Iterable[int]) -> None:
        """Kill and reap all orphans, except what is in the process group of a lane in `lanes`."""
        in_use = set(lanes)
        not_ours: set[int] = set()  # of another user, such as what sudo has started
        for _ in range(self.MOST_ROUNDS):
            found = [pid for pid in self._all(in_use | not_ours) if _group_of(pid) not in in_use]
            if not found:
                return
            for pid in found:  # all of them before one is awaited, because they may start others meanwhile
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                except PermissionError:
                    not_ours.add(pid)
            for pid in set(found) - not_ours:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def _all(self, lanes: Iterable[int]) -> list[int]:
        known = set(lanes)
        return [pid for pid in _children() if pid not in known]


def _children() -> Iterator[int]:
    """Yield the pids of this process's children; of none, where the kernel does not list them."""
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as file:
        yield from map(int, file.read().split())


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _run(
    functions: Sequence[RewardCallable],
    memory_gb: float,
    worker: int,
    private: Iterable[socket.socket | BaseSelector],
    calls: socket.socket,
) -> NoReturn:
    """Be the lane. Never returns, whatever happens, because the caller's stack belongs to the worker."""
    try:
        os.setpgid(0, 0)
        die_with(worker)
        for each in private:
            each.close()
        _bound_memory(memory_gb)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # if the machine runs out of memory, this process is the one to kill
        _serve(functions, calls, _Streams())
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


class _Streams:
    """Give each call of a lane standard streams that no other process has: an empty input, and the log as output.

    Inherited ones would be shared with all lanes of all workers. A program that makes them non-blocking, by fcntl,
    would do so for every later call, whose programs could not write.
    """

    def __init__(self) -> None:
        self._output = os.open("/proc/self/fd/1", os.O_WRONLY)  # a function may close or replace 1 and 2
        self.renew()

    def renew(self) -> None:
        """Open them anew, so that nothing that a call has set, or that it left running, is there in the next."""
        _open_as((0,), os.devnull, os.O_RDONLY)
        _open_as((1, 2), f"/proc/self/fd/{self._output}", os.O_WRONLY)  # unlike a duplicate, it has flags of its own


def _open_as(places: tuple[int, ...], path: str, flags: int) -> None:
    """Open a file as standard streams, which programs inherit."""
    opened = os.open(path, flags)
    for place in places:
        if place == opened:
            os.set_inheritable(place, True)
        else:
            os.dup2(opened, place)
    if opened > 2:  # else it took the place of one that was closed
        os.close(opened)


def _serve(functions: Sequence[RewardCallable], calls: socket.socket, streams: _Streams) -> None:
    """Run call after call.

    Consumes calls; waits for the next one; unblocked by it, or by the end of the connection, which ends the loop.
    """
    own_pid = os.getpid()
    # What the function forks, as multiprocessing does, may run what a model wrote, and must give no answers.
    os.register_at_fork(after_in_child=calls.close)
    frames = FrameReader()
    calls.sendall(frame(Answer(READY)))
    while data := calls.recv(READ_BYTES):
        for body in frames.feed(data):
            call = msgspec.msgpack.decode(body, type=RewardCall)
            verdict = judge(functions[call.function], call.problem, call.response)
            if os.getpid() != own_pid:
                return  # a copy of this process, which the function has forked
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that the function has left behind
            with contextlib.suppress(OSError):  # the function has closed everything; so it cannot answer either
                streams.renew()
            _show(verdict.traceback)
            try:
                calls.sendall(frame(Answer(call.id, verdict)))
            except OSError:
                os._exit(CLOSED)
            if verdict.error:
                return  # the worker tries it again elsewhere, and discards this process


def _show(trace: str) -> None:
    """Write out what the function has printed, and the traceback if it has raised."""
    flushes: list[Callable[[], None]] = [sys.stdout.flush, sys.stderr.flush]
    with contextlib.suppress(Exception):  # the function may have closed or replaced them
        if trace:
            print(trace, file=sys.stderr)
        for flush in flushes:
            flush()


def _bound_memory(gigabytes: float) -> None:
    """Bound the address space to what is mapped now, plus `gigabytes`; write no core dumps."""
    with open("/proc/self/statm") as file:
        mapped_pages = int(file.read().split()[0])
    limit = mapped_pages * resource.getpagesize() + int(gigabytes * 1e9)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def freeze_imports() -> None:
    """Keep the garbage collector of a lane from touching, and so copying, what the worker has imported."""
    gc.collect()
    gc.freeze()
