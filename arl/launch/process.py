"""Start a process on this machine, and watch it."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from arl.launch.base import Command
from arl.launch.spawn import signal_all, spawn
from arl.launch.watched_process import PIECE, WatchedProcess, describe_exit


class LocalChild:
    """Represent a child of this process; see arl.launch.watched_process.Child."""

    def __init__(
        self, process: asyncio.subprocess.Process, output: asyncio.StreamReader, pipe: asyncio.ReadTransport
    ) -> None:
        self.process = process
        self._output = output
        self._pipe = pipe  # which feeds `output`

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    async def wait(self) -> None:
        await self.process.wait()

    async def read(self) -> bytes:
        return await self._output.read(PIECE)

    def stop_reading(self) -> None:
        self._pipe.close()

    def signal_all(self, number: signal.Signals) -> None:
        signal_all(self.process, number)

    async def end(self) -> None:
        signal_all(self.process, signal.SIGKILL)

    def how_it_ended(self) -> str:
        code = self.returncode
        assert code is not None
        return describe_exit(code)


class LocalProcess(WatchedProcess):
    """Watch one process of this machine; see arl.launch.base.Process."""


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
    return LocalProcess(role, await start_child(command, stdin), log, on_line)


async def start_child(
    command: Command,
    stdin: int = asyncio.subprocess.DEVNULL,
    inherited: Mapping[str, str] = os.environ,
    directory: str | None = None,
) -> LocalChild:
    """Start `command` on this machine, with its output in a pipe.

    Args:
        stdin: file descriptor of its standard input.
        inherited: environment that the command's is added to.
        directory: in which it runs; None: this process's.
    """
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
            inherited=inherited,
            directory=directory,
        )
    finally:
        os.close(writing_end)
    return LocalChild(process, output, pipe)
