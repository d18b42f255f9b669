"""Watch a process on this machine: copy its output to a log, and wait until it is ready or has ended."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from arl.clock import deadline
from arl.errors import ProcessDied
from arl.launch.base import Command
from arl.launch.process_state import describe_state, state_letter
from arl.launch.spawn import signal_all, spawn

OUTPUT_SECONDS = 1.0  # for the rest of a dead process's output
TAIL_LINES = 15
TAIL_BYTES = 1 << 16  # of the log, in which its last lines are looked for
PIECE = 1 << 16  # bytes of output that are read at once


class LocalProcess:
    """Watch one process of this machine; see arl.launch.base.Process."""

    def __init__(
        self,
        role: str,
        process: asyncio.subprocess.Process,
        output: asyncio.StreamReader,
        pipe: asyncio.ReadTransport,
        log: Path,
        on_line: Callable[[str], None] | None,
    ) -> None:
        self._role = role
        self._process = process
        self._output = output
        self._pipe = pipe  # which feeds `output`
        self._log = log
        self._on_line = on_line
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._log_failure: Exception | None = None
        self._copying = asyncio.create_task(self._copy_output(), name=f"output of {role}")

    def __str__(self) -> str:
        return f"{self.role} (pid {self.pid})"

    @property
    def role(self) -> str:
        return self._role

    @property
    def node(self) -> int:
        return 0

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    async def state(self) -> str:
        return describe_state(state_letter(self.pid))

    async def ready(self, seconds: float) -> str:
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
        await self._process.wait()
        await asyncio.wait({self._copying}, timeout=OUTPUT_SECONDS)  # a child of it may hold its output open
        if self._log_failure is not None:
            return f"{self} was killed because its output could not be logged ({self._log_failure!r})"
        return f"{self} {self._how_it_ended()}"

    def _how_it_ended(self) -> str:
        """Say it of a process that has ended."""
        code = self.exit_code
        assert code is not None
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"

    async def died(self) -> ProcessDied:
        return ProcessDied(f"{await self.ended()}. {self.last_words()}")

    async def finished(self, seconds: float) -> None:
        async with deadline(seconds, "launcher", f"{self} to finish (log: {self._log})"):
            death = await self.died()
        if self.exit_code != 0:
            raise death

    async def ends_by_itself(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            return False
        finally:
            self._signal(signal.SIGKILL)
        return True

    async def stop(self, seconds: float) -> None:
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self._process.wait()
        finally:
            self._signal(signal.SIGKILL)  # what it started and left behind
            await asyncio.wait({self._copying}, timeout=OUTPUT_SECONDS)
            self._copying.cancel()

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and to what it has started, if anything is left of them."""
        signal_all(self._process, number)

    def last_words(self) -> str:
        try:
            end = _read_end(self._log)
        except OSError as error:  # what ended the process matters more
            return f"Its log {self._log} cannot be read: {error.strerror}."
        lines = end.decode(errors="replace").splitlines()[-TAIL_LINES:]
        indented = "\n".join(f"    {line}" for line in lines)
        return f"The end of {self._log}:\n{indented}"

    async def _copy_output(self) -> None:
        """Copy the output into the log.

        Consumes output; waits for more; unblocked by the process, or by its end. If the log cannot be written the
        process is killed, because it would block on a full pipe.
        """
        unfinished = b""
        try:
            with self._log.open("ab", buffering=0) as log:
                while piece := await self._output.read(PIECE):
                    log.write(piece)
                    *lines, unfinished = (unfinished + piece).split(b"\n")
                    for line in lines:
                        self._take_line(line.decode(errors="replace").strip())
        except Exception as error:
            self._log_failure = error
            self._signal(signal.SIGKILL)
        finally:
            self._pipe.close()  # whoever has inherited the other end may hold it open for longer

    def _take_line(self, line: str) -> None:
        if line.startswith("ready ") and not self._ready.done():
            self._ready.set_result(line.removeprefix("ready "))
        if self._on_line is not None:
            self._on_line(line)


def _read_end(log: Path) -> bytes:
    """Return the last bytes of a log, which may be too long to be read whole."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        return file.read()


P = TypeVar("P", bound=LocalProcess)


async def start_process(
    role: str,
    command: Command,
    log: Path,
    on_line: Callable[[str], None] | None,
    stdin: int = asyncio.subprocess.DEVNULL,
) -> LocalProcess:
    """Start `command` on this machine; its output goes to `log` and, line by line, to `on_line`.

    Args:
        stdin: file descriptor of its standard input.
    """
    return await start_process_of(LocalProcess, role, command, log, on_line, stdin)


async def start_process_of(
    make: Callable[..., P],
    role: str,
    command: Command,
    log: Path,
    on_line: Callable[[str], None] | None,
    stdin: int,
) -> P:
    """Start `command` as `start_process` does, watched by a kind of LocalProcess that `make` makes."""
    # A pipe of our own, because asyncio reports the end of a child only when its own pipes are closed, and whoever has
    # inherited one may hold it open for longer.
    reading_end, writing_end = os.pipe()
    output = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(output)
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(reading_end, "rb"))
    try:
        process = await spawn(
            command.argv,
            command.environment,
            stdin=stdin,
            output=writing_end,
        )
    finally:
        os.close(writing_end)
    return make(role, process, output, pipe, log, on_line)
