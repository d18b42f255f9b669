"""Run reward functions in processes that may hang or die: one zygote imports the functions and forks the workers.

    python -m arl.reward.worker SETTINGS            the socket to the controller is file descriptor 0

    controller ─ calls ──► zygote ─┬─ keeper ─ worker ─ what its function has started
               ◄─ answers          └─ keeper ─ worker       one call at a time, bounded memory, no other connection

At the deadline of a call its worker is killed with everything below it, and the call is made once more by another one.
The time in which a worker waited for a core does not count, nor does the CPU time of a slow start, because the first
call of a worker may import something: an honest call has an answer beside other busy processes.

A fork costs milliseconds, because all is imported. A keeper is the parent to which the kernel gives the orphans of its
worker alone, whatever sessions they have moved to: what a program of a call leaves behind ends with the call. What the
function itself has started, and not waited for, may help later calls, and ends with its worker.
"""

import contextlib
import gc
import glob
import os
import resource
import selectors
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from arl.config.imports import import_function
from arl.launch.child import adopt_orphans, die_with, exit_immediately, outlive_parent
from arl.launch.spawn import describe_exit
from arl.reward.grading import RewardCallable, Verdict, judge
from arl.sandbox.current import configure
from arl.types import Problem, Response

_HEADER = 4  # bytes of a frame's length
READ_BYTES = 1 << 16  # at once from a connection
READY = 0  # id of the answer of a zygote that has imported its functions; calls count from 1
END_SECONDS = 5.0  # for killed processes to end; one that waits for a disk ends later, by itself
EXIT_SECONDS = 0.5  # for a worker that has closed its connection to exit
PAUSE = 0.001  # seconds between two looks at them
START_SECONDS = 5.0  # of CPU time, which a first call may use beyond its deadline
MARGIN = 2.0  # with which the slowest first call that was answered lowers that
SHARE = 0.05  # of a core that a call gets at least; with less of it, the deadline is that of the clock
SLOW_START = "; first calls are slow if they import: import at the top of the module or in `prepare`, or raise it"


class Settings(Struct, frozen=True):
    """Hold what a zygote is started with."""

    functions: tuple[str, ...]  # module:function of each that may be called
    workers: int
    timeout: float  # seconds of one call
    memory_gb: float  # that a worker may allocate beyond what the zygote holds
    sandbox: dict[str, Any] = {}  # section of the recipe, for functions that run what a model wrote


class RewardCall(Struct, frozen=True):
    """Ask for the grade of one response."""

    id: int
    function: str  # one of the settings
    problem: Problem
    response: Response


class Answer(Struct, frozen=True):
    """Answer a call."""

    id: int
    verdict: Verdict = Verdict()


Functions = Mapping[str, RewardCallable]  # by module:function
CoreTimes = dict[str, tuple[float, float]]  # seconds that each thread has run, and has waited for a core


class FrameReader:
    """Cut a stream of bytes into frames, each of which is its length in 4 bytes and a message."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add what has arrived, and yield the messages that it completes."""
        self._bytes += data
        while len(self._bytes) >= _HEADER:
            end = _HEADER + int.from_bytes(self._bytes[:_HEADER], "big")
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[_HEADER:end])
            del self._bytes[:end]
            yield body


def frame(message: Struct) -> bytes:
    """Encode a message behind its length."""
    return _framed(msgspec.msgpack.encode(message))


def _framed(body: bytes) -> bytes:
    return len(body).to_bytes(_HEADER, "big") + body


@dataclass(eq=False)
class _Worker:
    """Hold one worker, as the zygote sees it."""

    keeper: int  # process id of its parent
    connection: socket.socket
    frames: FrameReader = field(default_factory=FrameReader)
    call: bytes = b""  # that it makes; none: it is idle
    is_new: bool = True  # it has answered no call
    begin: float = 0.0  # clock seconds: of the call
    end: float = 0.0  # when the zygote looks whether the time of the call is over
    before: CoreTimes | None = None  # when the call began; None: the zygote has not looked


class Zygote:
    """Distribute the calls of `functions` that arrive from one controller over workers."""

    def __init__(self, functions: Functions, settings: Settings, controller: socket.socket) -> None:
        self._functions = functions
        self._settings = settings
        self._controller = controller
        self._waiting: deque[bytes] = deque()
        self._failed_once: set[int] = set()  # ids of calls
        self._workers: list[_Worker] = []
        self._starts: list[float] = []  # seconds of first calls that were answered
        self._helpers = _children(os.getpid())  # which the import has started
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serve calls until the controller closes the connection or dies; then kill everything below this process.

        Unblocked by calls, by answers, and by a call whose deadline passes.
        """
        frames = FrameReader()
        self._selector.register(self._controller, selectors.EVENT_READ)
        self._tell(Answer(READY))
        while True:
            self._start_calls()
            ends = [worker.end for worker in self._workers if worker.call]
            for key, _ in self._selector.select(max(min(ends) - time.monotonic(), 0.0) if ends else None):
                if key.data is not None:
                    self._take_answer(key.data)
                    continue
                data = _receive(self._controller)
                if not data:
                    return kill_below(os.getpid(), spare=())
                self._waiting.extend(frames.feed(data))
            for worker in [each for each in self._workers if each.call and each.end <= time.monotonic()]:
                self._look_at(worker)

    def _tell(self, answer: Answer) -> None:
        with contextlib.suppress(ConnectionError):  # the next reading finds that the controller is gone
            self._controller.sendall(frame(answer))

    def _start_calls(self) -> None:
        """Give the calls that wait to idle workers, and to new ones as long as there may be more."""
        while self._waiting:
            worker = next((each for each in self._workers if not each.call), None)
            if worker is None and len(self._workers) == self._settings.workers:
                return
            worker = worker or self._fork()
            worker.call = self._waiting.popleft()
            worker.begin = time.monotonic()
            worker.before = {} if worker.is_new else None
            worker.end = worker.begin + self._settings.timeout * (1.0 if worker.is_new else SHARE)
            with contextlib.suppress(OSError):  # it has died, or was stopped: reading, or the deadline, finds that
                worker.connection.sendall(_framed(worker.call))

    def _take_answer(self, worker: _Worker) -> None:
        """Pass the answer of a worker on, if it is one, and no error."""
        data = _receive(worker.connection)
        if not data:
            return self._lose(worker, Verdict(error=_how_it_ended(worker.keeper)))
        for body in worker.frames.feed(data):
            answer = msgspec.msgpack.decode(body, type=Answer)
            if answer.verdict.error:
                return self._lose(worker, answer.verdict)
            if worker.is_new:
                self._starts.append(time.monotonic() - worker.begin)
                worker.is_new = False
            worker.call = b""
            self._tell(answer)
        return None

    def _look_at(self, worker: _Worker) -> None:
        """Kill the worker of a call whose time is over, or say when to look again.

        The time of a call is what it would have taken with a core of its own: one that sleeps reaches its deadline by
        the clock, one that computes by the cores it got. A call that ends before the first look costs no look at all.
        """
        timeout = self._settings.timeout
        if worker.before is None:
            worker.before = _core_times(worker.keeper, {})
            worker.begin = max(worker.begin, time.monotonic() - timeout * SHARE)  # this process may have waited, too
            worker.end = worker.begin + timeout
            return
        times = _core_times(worker.keeper, worker.before).values()
        ran, waited = map(max, zip((0.0, 0.0), *times, strict=True))  # of one thread: they compute at the same time
        allowance = min(MARGIN * max(self._starts, default=START_SECONDS), START_SECONDS)
        starting = min(ran, allowance) if worker.is_new else 0.0
        elapsed = time.monotonic() - worker.begin
        left = timeout - (elapsed - waited - starting)
        if left > 0 and elapsed < (timeout + starting) / SHARE:
            worker.end = time.monotonic() + max(left, PAUSE)
            self._tell(Answer(READY))  # so that the controller knows that this process is not lost
            return
        if starting > timeout:  # it has had the time of two calls
            self._failed_once.add(msgspec.msgpack.decode(worker.call, type=RewardCall).id)
        hint = SLOW_START if worker.is_new and ran > timeout / 2 else ""
        self._lose(worker, Verdict(error=f"no answer in {timeout:g} s (deadlines.reward){hint}"))

    def _lose(self, worker: _Worker, verdict: Verdict) -> None:
        """Kill a worker with everything below it. Its call is made once more, or has the verdict for an answer."""
        self._workers.remove(worker)
        self._selector.unregister(worker.connection)
        worker.connection.close()
        kill_below(os.getpid(), spare=[*self._helpers, *(each.keeper for each in self._workers)])
        if not worker.call:
            return
        call = msgspec.msgpack.decode(worker.call, type=RewardCall)
        if call.id in self._failed_once:
            self._tell(Answer(call.id, verdict))
        else:
            self._failed_once.add(call.id)
            self._waiting.appendleft(worker.call)

    def _fork(self) -> _Worker:
        """Start a worker."""
        ours, theirs = socket.socketpair()
        zygote = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        with theirs:
            keeper = os.fork()
            if keeper == 0:
                self._selector.close()
                for each in (ours, self._controller, *(worker.connection for worker in self._workers)):
                    each.close()
                _keep(self._functions, theirs, zygote, self._settings.memory_gb)
        ours.settimeout(END_SECONDS)
        worker = _Worker(keeper, ours)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker


def _receive(connection: socket.socket) -> bytes:
    """Return what has arrived; nothing, where the other end is gone."""
    with contextlib.suppress(OSError):
        return connection.recv(READ_BYTES)
    return b""


def _keep(functions: Functions, connection: socket.socket, zygote: int, memory_gb: float) -> NoReturn:
    """Be the keeper of a worker, which this forks: reap its orphans, and end as it does, with all that it has left."""
    try:
        die_with(zygote)
        adopt_orphans()
        for number in (signal.SIGINT, signal.SIGTERM):  # from outside; what is imported may handle them
            signal.signal(number, signal.SIG_DFL)
        keeper = os.getpid()
        worker = os.fork()
        if worker == 0:
            _work(functions, connection, keeper, memory_gb)
        connection.close()
        ended, status = 0, 0
        while ended != worker:
            ended, status = os.wait()
        kill_below(keeper, spare=())
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            os.kill(keeper, -code)
        os._exit(max(code, 0))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def _work(functions: Functions, connection: socket.socket, keeper: int, memory_gb: float) -> None:
    """Make call after call, until the connection ends, or a call fails: then this process is not used again."""
    os.setpgid(0, 0)
    die_with(keeper)
    _bound_memory(memory_gb)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if the machine runs out of memory, this process is the one to kill
    # What the function forks, as multiprocessing does, may run what a model wrote, and must give no answers.
    os.register_at_fork(after_in_child=connection.close)
    worker = os.getpid()
    frames = FrameReader()
    while data := connection.recv(READ_BYTES):
        for body in frames.feed(data):
            call = msgspec.msgpack.decode(body, type=RewardCall)
            verdict = judge(functions[call.function], call.problem, call.response)
            if os.getpid() != worker:
                os._exit(0)  # a copy of this process, which the function has forked
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that the function has left behind
            kill_below(keeper, spare=[worker])
            with contextlib.suppress(Exception):  # the function may have closed or replaced the streams
                print(verdict.traceback, end="", file=sys.stderr, flush=True)
                sys.stdout.flush()
            connection.sendall(frame(Answer(call.id, verdict)))
            if verdict.error:
                os._exit(0)
    os._exit(0)


def _bound_memory(gigabytes: float) -> None:
    """Bound the address space to what is mapped now, plus `gigabytes`; write no core dumps."""
    with open("/proc/self/statm") as file:
        mapped_pages = int(file.read().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = mapped_pages * resource.getpagesize() + int(gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _how_it_ended(keeper: int) -> str:
    """Say how the process of a worker has ended, whose connection is closed."""
    end = time.monotonic() + EXIT_SECONDS
    while time.monotonic() < end:
        pid, status = os.waitpid(keeper, os.WNOHANG)
        if pid:
            return (
                f"its process {describe_exit(os.waitstatus_to_exitcode(status), 'reward.memory_gb or reward.workers')}"
            )
        time.sleep(PAUSE)
    return "it closed the file descriptors of its process"


def kill_below(pid: int, spare: Collection[int]) -> None:
    """Kill the children of a process except those in `spare`, and all below them, until there are none.

    Those whose parents were killed are given to this process or its keeper, and are found again.
    """
    end = time.monotonic() + END_SECONDS
    while time.monotonic() < end:
        found = _below(pid, spare)
        if not found:
            return
        for each in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # not of this process: its parent reaps it
                os.waitpid(each, os.WNOHANG)
        time.sleep(PAUSE)


def _below(pid: int, spare: Collection[int] = ()) -> list[int]:
    """Return the children of a process except those in `spare`, and all below them."""
    found = [child for child in _children(pid) if child not in spare]
    for child in found:  # it grows meanwhile
        found += _children(child)
    return found


def _core_times(keeper: int, before: CoreTimes) -> CoreTimes:
    """Return the times of all threads below a keeper since `before`; none, where the kernel does not count them."""
    times: CoreTimes = {}
    for thread in (path for pid in _below(keeper) for path in glob.glob(f"/proc/{pid}/task/*/schedstat")):
        with contextlib.suppress(OSError, ValueError), open(thread) as file:  # it has ended meanwhile
            ran, waited, _ = map(int, file.read().split())
            ran_before, waited_before = before.get(thread, (0.0, 0.0))
            times[thread] = (ran / 1e9 - ran_before, waited / 1e9 - waited_before)
    return times


def _children(pid: int) -> list[int]:
    """Return the children of a process, ended ones too; none, where the kernel does not list them."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def _use_threads(threads: Mapping[str, str]) -> None:
    """Let torch, and what is imported from now on, use as many threads as the recipe gives."""
    os.environ.update(threads)
    if "torch" in sys.modules and threads["OMP_NUM_THREADS"].isdecimal():
        sys.modules["torch"].set_num_threads(int(threads["OMP_NUM_THREADS"]))


def main() -> None:
    """Serve the functions that the command line names."""
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    controller = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what is started from here does not inherit the socket
    threads = {name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    os.environ.update(dict.fromkeys(threads, "1"))  # threads of OpenMP that the import used would be missing in a fork
    configure(settings.sandbox)
    functions = {name: import_function(name, "reward.function") for name in settings.functions}
    for function in functions.values():
        if prepare := getattr(function, "prepare", None):
            prepare()
    os.register_at_fork(after_in_child=lambda: _use_threads(threads))
    gc.collect()
    gc.freeze()  # so that the collector of a worker does not touch, and so copy, what is imported
    adopt_orphans()
    outlive_parent()  # the end of the connection ends this process, which then kills what it has started
    Zygote(functions, settings, controller).serve()
    exit_immediately(0)


if __name__ == "__main__":
    main()
