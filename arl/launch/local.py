"""Processes on this machine: started with a role, watched, and always reaped, grandchildren included.

async with LocalProcesses(logs, patience) as processes:
    engine = await processes.start("engine-0", argv, env)    its output goes to logs/engine-0.log
    url = await engine.ready(120)                            what it printed after "ready "
    await processes.watch()                                  returns never; raises ProcessDied
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from arl.clock import deadline
from arl.errors import ProcessDied
from arl.launch.child import PARENT

LAST_WORDS = 1.0  # seconds for the rest of a dead process's output
# Processes that share cores must not burn them while waiting for each other.
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}


class LocalProcess:
    """One child; made by LocalProcesses.start."""

    def __init__(
        self,
        role: str,
        process: asyncio.subprocess.Process,
        output: asyncio.StreamReader,
        log: Path,
        on_line: Callable[[str], None],
        is_kept: bool,
    ) -> None:
        self.role, self.log, self._process, self._output, self._on_line = role, log, process, output, on_line
        self.is_kept = is_kept  # whoever started it sees to its end
        self.is_done = False  # it was meant to end, and has
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._unheard: Exception | None = None  # why its output could not be taken
        self._pump = asyncio.create_task(self._copy_output(), name=f"output of {role}")

    def __str__(self) -> str:
        return f"{self.role} (pid {self.pid})"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None: it runs; negative: the signal that killed it."""
        return self._process.returncode

    async def _copy_output(self) -> None:
        """Consumes output into the log, line by line to whoever listens; unblocked by the child; ends with its output.

        A child whose output cannot be taken would block on a full pipe: it is killed instead, and the reason told.
        """
        rest = b""
        try:
            with self.log.open("ab", buffering=0) as log:
                while piece := await self._output.read(1 << 16):
                    log.write(piece)
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        self._hear(line.decode(errors="replace").strip())
        except Exception as error:
            self._unheard = error
            self._signal(signal.SIGKILL)

    def _hear(self, line: str) -> None:
        if line.startswith("ready ") and not self._ready.done():
            self._ready.set_result(line.removeprefix("ready "))
        self._on_line(line)

    async def ready(self, seconds: float) -> str:
        """What the process printed after `ready `; ProcessDied if it ends first."""
        async with deadline(seconds, "launcher", f"{self.role} to be ready (log: {self.log})"):
            died = asyncio.create_task(self.died())
            waiting: set[asyncio.Future[Any]] = {died, self._ready}
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if not self._ready.done():
                    raise await died
                return self._ready.result()
            finally:
                died.cancel()

    async def ended(self) -> str:
        """Waits for the end of the process, and says how it ended."""
        code = await self._process.wait()
        await asyncio.wait({self._pump}, timeout=LAST_WORDS)  # a grandchild may hold the pipe open
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        if self._unheard is not None:
            how = f"was killed because its output could not be taken ({self._unheard!r})"
        return f"{self} {how}"

    async def died(self) -> ProcessDied:
        """Waits likewise, and quotes the end of its log."""
        return ProcessDied(f"{await self.ended()}. {self.last_words()}")

    def last_words(self) -> str:
        return f"The end of {self.log}:\n{_tail(self.log)}"

    async def ends_by_itself(self, seconds: float) -> bool:
        """Whether it ends within `seconds`; whatever is left of it and of what it started is killed then."""
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            return False
        finally:
            self._signal(signal.SIGKILL)
        return True

    async def finished(self, seconds: float) -> None:
        """Wait for a process that is meant to end; ProcessDied if it fails."""
        async with deadline(seconds, "launcher", f"{self.role} to finish (log: {self.log})"):
            died = await self.died()
        self.is_done = True
        if self._process.returncode:
            raise died

    async def stop(self, patience: float) -> None:
        """SIGTERM, then SIGKILL after `patience` seconds, to the whole process group."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(patience):
                await self._process.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self._process.wait()
        finally:
            self._signal(signal.SIGKILL)  # whatever it started and left behind
            await asyncio.wait({self._pump}, timeout=LAST_WORDS)
            self._pump.cancel()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class LocalProcesses:
    def __init__(self, logs: Path, patience: float) -> None:
        self.logs, self._patience = logs, patience
        self._processes: list[LocalProcess] = []

    async def __aenter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(asyncio.gather(*(p.stop(self._patience) for p in self._processes)))

    async def start(
        self,
        role: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        on_line: Callable[[str], None] = lambda _: None,
        is_kept: bool = False,
    ) -> LocalProcess:
        """Run `argv` with `env` added to ours; `on_line` is given every line of its output, also logged.

        The death of one that `is_kept` is not watched for: see arl.engine.supervisor.
        """
        log = self.logs / f"{role}.log"
        # A pipe of our own: asyncio would not see the end of a child before whoever inherited its pipe has ended too.
        ours, theirs = os.pipe()
        output = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(output)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(ours, "rb"))
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=theirs,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **PASSIVE, **env, "PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())},
                start_new_session=True,  # Ctrl-C is the controller's to handle
            )
        finally:
            os.close(theirs)
        started = LocalProcess(role, process, output, log, on_line, is_kept)
        # A dead one whose place it takes is forgotten: its number may be another process's by the end of the run.
        self._processes = [p for p in self._processes if p.role != role or p.exit_code is None] + [started]
        return started

    @property
    def processes(self) -> list[LocalProcess]:
        """Every process that was started, without the dead ones whose role was started again."""
        return self._processes

    @property
    def _watched(self) -> list[LocalProcess]:
        return [p for p in self._processes if not p.is_done and not p.is_kept]

    async def first_death(self, seconds: float) -> ProcessDied | None:
        """The ending of a process that is gone, or goes within `seconds`; None if all live on."""
        if not self._watched:
            return None
        try:
            async with asyncio.timeout(seconds):
                await self.watch()
        except ProcessDied as death:
            return death
        except TimeoutError:
            return None

    def log_ends(self, role: str) -> str:
        """The last lines of the logs of processes called `role` and a number."""
        logs = [p.log for p in self._processes if p.role.startswith(f"{role}-")]
        return "".join(f"\nThe end of {log}:\n{_tail(log)}" for log in logs)

    async def watch(self) -> NoReturn:
        """Raises ProcessDied as soon as one of the processes started so far ends."""
        endings = [asyncio.create_task(p.died(), name=f"watch {p.role}") for p in self._watched]
        try:
            done, _ = await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
            raise done.pop().result()
        finally:
            for ending in endings:
                ending.cancel()


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join("    " + line for line in log.read_text(errors="replace").splitlines()[-lines:])
