"""Watch a process: copy its output to a log, and wait until it is ready or has ended.

_read ─► logs/<role>.log, on_line, ready     _wait ─► ended, died, finished     stop ─► _signal, _end

LocalProcess is a process of this machine. A launcher of other machines inherits from Process, and says how its
processes are read, awaited and signaled.
"""

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from arl.clock import deadline
from arl.errors import ProcessDied
from arl.files import explain_disk
from arl.launch.spawn import RUNS, describe_exit, describe_state, signal_all, spawn

PIECE = 1 << 16  # bytes of output that are read at once
OUTPUT_SECONDS = 1.0  # for the rest of a dead process's output
SHOWN_LINES = 15
SHOWN_BYTES = 4096  # of each of them
MAX_LINE = 1 << 20  # bytes; of a longer line only the end is read
LOWERED_BY = {  # fields that lower the memory of a process, by the kind of its role
    "engine": "engine.slots or engine.replicas",
    "evaluation": "engine.slots",
    "trainer": "train.capacity or train.ranks",
}


def open_log(path: Path) -> BinaryIO:
    """Open a log to append to it. Only this user may read it: SGLang prints its settings, the run's key among them."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab", buffering=0)


OnLine = Callable[[str], None] | None  # gets every line of a process's output, see arl.launch.base.Launcher.start


class Role(NamedTuple):
    """Say what a process is in the run, and where its output goes."""

    name: str  # such as engine-0 or trainer-1
    log: Path
    on_line: OnLine = None
    node: int = 0  # number of its node in Launcher.nodes
    node_name: str = ""  # as messages show it; empty: the run has only this machine


class Process(ABC):
    """Watch a process that a launcher has started; `str()` of it names its role, its pid, and its node if several.

    engine = await launcher.start("engine-0", command, resources)
    url = await engine.ready(120)
    raise await engine.died()                                       when it has ended
    """

    def __init__(self, role: Role) -> None:
        self.role = role.name
        self.node = role.node
        self._node_name = role.node_name
        self._log = role.log
        self._on_line = role.on_line
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        # The log also holds what earlier processes of this role have printed. A message shows this one's lines alone.
        self._last_lines: deque[bytes] = deque(maxlen=SHOWN_LINES)
        self._unfinished_line = b""
        self._killed_because = ""  # its output could not be copied
        self._copying = asyncio.create_task(self._copy_output(), name=f"output of {self.role}")

    def __str__(self) -> str:
        place = f" on {self._node_name}" if self._node_name else ""
        return f"{self.role} ({f'pid {self.pid}' if self.pid else 'starting'}{place})"

    @property
    @abstractmethod
    def pid(self) -> int:
        """Return its process id on its node; 0: the node is still starting it, and has not reported any."""

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """Return its exit code. None: it runs; negative: the signal that killed it."""

    async def state(self) -> str:
        """Return a phrase that says what it does, as far as it is known here: `runs`, or what keeps it from running."""
        return RUNS

    @abstractmethod
    async def _wait(self) -> object:
        """Wait until it has ended."""

    @abstractmethod
    async def _read(self) -> bytes:
        """Wait for the next piece of its output; empty: there is no more."""

    @abstractmethod
    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to what it has started, if anything is left of them."""

    async def _end(self) -> None:
        """Kill what is left of it and of what it has started, and wait until it has ended."""
        self._signal(signal.SIGKILL)
        await self._wait()

    def _how_it_ended(self) -> str:
        """Say how it has ended, as in `exited with code 1`."""
        assert self.exit_code is not None
        return describe_exit(self.exit_code, LOWERED_BY.get(self.role.partition("-")[0], ""))

    async def ready(self, seconds: float) -> str:
        """Return the address that the process has printed after `ready `.

        Raises:
            ProcessDied: it ended first.
            DeadlineError: `seconds` passed.
        """
        async with deadline(seconds, "launcher", f"{self} to be ready (log: {self._log})"):
            death = asyncio.create_task(self.died())
            waits: set[asyncio.Future[Any]] = {death, self._ready}
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if not self._ready.done():
                    raise await death
                return self._ready.result()
            finally:
                death.cancel()

    async def ended(self) -> str:
        """Wait until the process has ended, and return a phrase that says how."""
        await self._wait()
        await asyncio.wait({self._copying}, timeout=OUTPUT_SECONDS)  # a child of it may hold its output open
        if self._killed_because:
            return f"{self} was killed because {self._killed_because}"
        return f"{self} {self._how_it_ended()}"

    async def died(self) -> ProcessDied:
        """Wait until the process has ended, and return an error that says how and shows the end of its log."""
        return ProcessDied(f"{await self.ended()}.\n{self.log_tail()}")

    async def finished(self, seconds: float) -> None:
        """Wait for a process that is meant to end.

        Raises:
            ProcessDied: its exit code is not 0.
            DeadlineError: `seconds` passed.
        """
        async with deadline(seconds, "launcher", f"{self} to finish (log: {self._log})"):
            death = await self.died()
        if self.exit_code != 0 or self._killed_because:
            raise death

    async def wait_then_kill_group(self, seconds: float) -> bool:
        """Return True if the process ends within `seconds`. What is left of it and of its children is killed then."""
        try:
            async with asyncio.timeout(seconds):
                await self._wait()
        except TimeoutError:
            return False
        finally:
            await self._end()
        return True

    async def stop(self, seconds: float) -> None:
        """Send SIGTERM, and SIGKILL after `seconds`, to the process and to everything that it started."""
        self._signal(signal.SIGTERM)
        try:
            await self.wait_then_kill_group(seconds)
        finally:
            await asyncio.wait({self._copying}, timeout=OUTPUT_SECONDS)
            self._copying.cancel()

    def log_tail(self) -> str:
        """Return the last lines that it has printed, and where its log is."""
        lines = [line for line in (*self._last_lines, self._unfinished_line) if line]
        shown = [f"    {line[:SHOWN_BYTES].decode(errors='replace').rstrip()}" for line in lines[-SHOWN_LINES:]]
        return "\n".join([f"The end of {self._log}:", *shown])

    async def _copy_output(self) -> None:
        """Copy the output into the log.

        Consumes output; waits for more; unblocked by the process, or by its end. If the output cannot be read, or the
        log cannot be written, the process is killed, because it would block on a full pipe.
        """
        try:
            with open_log(self._log) as log:
                while piece := await self._read():
                    log.write(piece)
                    *lines, rest = (self._unfinished_line + piece).split(b"\n")
                    self._unfinished_line = rest[-MAX_LINE:]
                    self._last_lines += lines
                    for line in lines:
                        self._take_line(line.decode(errors="replace").strip())
        except Exception as error:  # also of `on_line`: whoever waits for the process learns of it
            why = explain_disk(self._log, error.errno) if isinstance(error, OSError) else repr(error)
            self._killed_because = f"its output could not be logged ({why})"
            self._signal(signal.SIGKILL)

    def _take_line(self, line: str) -> None:
        if line.startswith("ready ") and not self._ready.done():
            self._ready.set_result(line.removeprefix("ready "))
        if self._on_line is not None:
            self._on_line(line)


class PipedChild(NamedTuple):
    """Hold a child of this process whose output nobody reads yet."""

    process: asyncio.subprocess.Process
    output: asyncio.StreamReader
    pipe: asyncio.ReadTransport  # which feeds `output`


class LocalProcess(Process):
    """Watch one process of this machine, with the pipe that it prints into."""

    def __init__(self, role: Role, child: PipedChild) -> None:
        self._process = child.process
        self._output = child.output
        super().__init__(role)
        # A process that has inherited the other end may hold it open for longer.
        self._copying.add_done_callback(lambda _: child.pipe.close())

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    async def state(self) -> str:
        return describe_state(self._process.pid)

    async def _wait(self) -> object:
        return await self._process.wait()

    async def _read(self) -> bytes:
        return await self._output.read(PIECE)

    def _signal(self, number: signal.Signals) -> None:
        signal_all(self._process, number)


async def start_process(
    role: str, argv: Sequence[str], environment: Mapping[str, str], log: Path, on_line: OnLine = None
) -> LocalProcess:
    """Start a command on this machine; its output goes to `log` and, line by line, to `on_line`."""
    return LocalProcess(Role(role, log, on_line), await start_child(argv, environment))


async def start_child(argv: Sequence[str], environment: Mapping[str, str], **options: Any) -> PipedChild:
    """Start a command on this machine as `spawn` does, with its output in a pipe."""
    # A pipe of our own, because asyncio reports the end of a child only when its own pipes are closed, and whoever has
    # inherited one may hold it open for longer.
    reading_end, writing_end = os.pipe()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(reading_end, "rb"))
    try:
        process = await spawn(argv, environment, output=writing_end, **options)
    except BaseException:  # also a cancellation
        pipe.close()
        raise
    finally:
        os.close(writing_end)
    return PipedChild(process, reader, pipe)
