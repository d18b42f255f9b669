"""Start a process on this machine, and watch it."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from arl.launch.base import Command
from arl.launch.hidden_secrets import HiddenSecrets
from arl.launch.process_state import describe_state, state_letter
from arl.launch.spawn import signal_all, spawn
from arl.launch.watched_process import WatchedProcess

PIECE = 1 << 16  # bytes of output that are read at once


class LocalProcess(WatchedProcess):
    """Watch one process of this machine; see arl.launch.base.Process.

    Args:
        process: the child.
        output: what it prints.
        pipe: feeds `output`.
    """

    def __init__(
        self,
        role: str,
        process: asyncio.subprocess.Process,
        output: "ChildOutput",
        pipe: asyncio.ReadTransport,
        log: Path,
        on_line: Callable[[str], None] | None,
    ) -> None:
        self._process = process
        self._output = output
        self._pipe = pipe
        super().__init__(role, log, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    async def state(self) -> str:
        return describe_state(state_letter(self.pid))

    async def _wait(self) -> object:
        return await self._process.wait()

    async def _read(self) -> bytes:
        return await self._output.read()

    def _stop_reading(self) -> None:
        self._pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        signal_all(self._process, number)


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
    child = await start_child(command, stdin)
    return make(role, child.process, child.output, child.pipe, log, on_line)


class ChildOutput:
    """Read what a child prints, without the secrets that it was given.

    Args:
        reader: of its pipe.
        secrets: texts that are hidden.
    """

    def __init__(self, reader: asyncio.StreamReader, secrets: Iterable[str]) -> None:
        self._reader = reader
        self._secrets = HiddenSecrets(secrets)

    async def read(self) -> bytes:
        """Wait for the next piece; empty: there is no more."""
        while piece := await self._reader.read(PIECE):
            if shown := self._secrets.take(piece):
                return shown
        return self._secrets.rest()


class PipedChild(NamedTuple):
    """Hold a child of this process whose output nobody reads yet."""

    process: asyncio.subprocess.Process
    output: ChildOutput
    pipe: asyncio.ReadTransport  # which feeds `output`


async def start_child(
    command: Command,
    stdin: int = asyncio.subprocess.DEVNULL,
    inherited: Mapping[str, str] = os.environ,
    directory: str | None = None,
) -> PipedChild:
    """Start `command` on this machine, with its output in a pipe. Its secrets are hidden there.

    Args:
        stdin: file descriptor of its standard input.
        inherited: environment that the command's is added to.
        directory: in which it runs; None: this process's.
    """
    # A pipe of our own, because asyncio reports the end of a child only when its own pipes are closed, and whoever has
    # inherited one may hold it open for longer.
    reading_end, writing_end = os.pipe()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(reading_end, "rb"))
    try:
        process = await spawn(
            command.argv,
            {**command.environment, **command.secrets},
            stdin=stdin,
            output=writing_end,
            inherited=inherited,
            directory=directory,
        )
    except BaseException:  # also a cancellation
        pipe.close()
        raise
    finally:
        os.close(writing_end)
    return PipedChild(process, ChildOutput(reader, command.secrets.values()), pipe)
