"""Be the process of a lane: make the calls that arrive one after the other, and answer each.

call ─► the function, in the main thread ─► what it has left is killed ─► answer
"""

import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from selectors import BaseSelector
from typing import NoReturn

import msgspec

from arl.launch.child import adopt_orphans, die_with
from arl.launch.frames import FrameReader, frame
from arl.reward.grading import RewardCallable, judge
from arl.reward.leftovers import keep, kill_children
from arl.reward.limits import LimitWatch
from arl.reward.messages import READ_BYTES, READY, Answer, RewardCall, Verdict

PID_BYTES = 4
Private = socket.socket | BaseSelector
CLOSED = 120  # exit code of a lane that cannot send its answer
LIMITED = 121  # of one whose limits were lowered before it began
LIMITS_LOWERED = "another process has lowered the limits of its process"


def run(
    functions: Sequence[RewardCallable],
    memory_gb: float,
    private: Iterable[Private],
    connection: socket.socket,
    limits: LimitWatch,
    worker: int,
) -> NoReturn:
    """Be the keeper of a lane, in a process that the worker has forked, and fork the lane.

    Never returns, whatever happens, because the caller's stack belongs to the worker.

    Args:
        memory_gb: that the lane may allocate beyond what the worker holds.
        private: connections of the worker, and what waits for them, which are closed.
        connection: to the worker.
        limits: of the worker, which the lane must have as well.
        worker: process id of the worker.
    """
    try:
        die_with(worker)
        for each in private:
            each.close()
        adopt_orphans()
        for number in (signal.SIGINT, signal.SIGTERM):  # from outside; what the worker has imported may handle them
            signal.signal(number, signal.SIG_DFL)
        keeper = os.getpid()
        lane = os.fork()
        if lane == 0:
            os._exit(_be_lane(functions, memory_gb, keeper, connection, limits))
        connection.close()
        keep(lane)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def _be_lane(
    functions: Sequence[RewardCallable],
    memory_gb: float,
    keeper: int,
    connection: socket.socket,
    limits: LimitWatch,
) -> int:
    """Tell the worker the process id of the lane, make calls until there are no more, and return an exit code.

    Raises:
        OSError: the worker is gone.
    """
    os.setpgid(0, 0)
    die_with(keeper)
    connection.sendall(os.getpid().to_bytes(PID_BYTES))
    if limits.lowered():
        return LIMITED
    _bound_memory(memory_gb)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if the machine runs out of memory, this process is the one to kill
    own_limits = LimitWatch()
    own_limits.allow_own_changes()
    _serve(functions, keeper, connection, own_limits)
    return 1


class _Streams:
    """Give each call of a lane standard streams that no other process has: an empty input, and the log as output.

    Inherited ones would be shared with all lanes of all workers. A program that makes them non-blocking, by fcntl,
    would do so for every later call, whose programs could not write.
    """

    def __init__(self) -> None:
        self._output = os.open("/proc/self/fd/1", os.O_WRONLY | os.O_APPEND)  # a function may close or replace 1 and 2
        self.renew()

    def renew(self) -> None:
        """Open them anew, so that nothing that a call has set, or that it left running, is there in the next."""
        _open_as((0,), os.devnull, os.O_RDONLY)
        _open_as(
            (1, 2), f"/proc/self/fd/{self._output}", os.O_WRONLY | os.O_APPEND
        )  # unlike a duplicate, it has flags of its own


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


def _serve(functions: Sequence[RewardCallable], keeper: int, connection: socket.socket, limits: LimitWatch) -> None:
    """Run call after call.

    Consumes calls; waits for the next one; unblocked by it, or by the end of the connection, which ends the loop.
    """
    own_pid = os.getpid()
    # What the function forks, as multiprocessing does, may run what a model wrote, and must give no answers.
    os.register_at_fork(after_in_child=connection.close)
    streams = _Streams()
    frames = FrameReader()
    connection.sendall(frame(Answer(READY)))
    while data := connection.recv(READ_BYTES):
        for body in frames.feed(data):
            call = msgspec.msgpack.decode(body, type=RewardCall)
            verdict = judge(functions[call.function], call.problem, call.response)
            if os.getpid() != own_pid:
                return  # a copy of this process, which the function has forked
            _end_call(keeper, streams)
            if lowered := limits.lowered():
                verdict = Verdict(error=f"{LIMITS_LOWERED} ({', '.join(lowered)})", is_disturbed=True)
            _show(verdict.traceback)
            try:
                connection.sendall(frame(Answer(call.id, verdict)))
            except OSError:
                os._exit(CLOSED)
            if verdict.error:
                return  # the worker tries it again elsewhere, and discards this process


def _end_call(keeper: int, streams: _Streams) -> None:
    """Let nothing of a call reach the next one."""
    signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that the function has left behind
    os.kill(keeper, signal.SIGCONT)  # a program may have stopped it, and what ends would stay
    kill_children(keeper, spare=[os.getpid()])
    with contextlib.suppress(OSError):  # the function has closed everything; so it cannot answer either
        streams.renew()


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
