"""Write a log in parts of bounded size, so that no process fills a disk with what it prints.

    write ─► engine-0.log ─ full ─► engine-0.log.1 ─► engine-0.log.2 ─► engine-0.log.3 ─► removed

The newest part always has the name of the log. Renaming keeps a part's inode, by which a reader that follows the log
(arl.watch.run_logs) finds the part that it was reading.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from arl.errors import DiskError
from arl.launch.disk import writing

PART_BYTES = 16 << 20
OLD_PARTS = 3
OUTPUT_SECONDS = 1.0  # for the rest of a dead process's output


class RotatingLog:
    """Append to a log. Several of these may append to one log, if one thread writes with all of them.

    Two threads or two processes could both find a part full, and rename it twice: a part would be lost. In a run one
    process writes each log, in its event loop: what it starts writes into a pipe.

    Args:
        path: of the newest part.
        part_bytes: a part that would become longer is full. Parts end with a whole line if there is one.
    """

    def __init__(self, path: Path, part_bytes: int = PART_BYTES) -> None:
        self._path = path
        self._part_bytes = part_bytes
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, piece: bytes) -> None:
        """Append a piece of output, which may begin and end inside a line.

        Raises:
            OSError: it cannot be written.
        """
        self._follow_newest()
        room = self._part_bytes - self._file.seek(0, os.SEEK_END)
        if len(piece) > room:
            whole_lines = piece.rfind(b"\n", 0, max(0, room)) + 1
            self._append(piece[:whole_lines])
            self._begin_part()
            piece = piece[whole_lines:]
        self._append(piece)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, piece: bytes) -> None:
        rest = memoryview(piece)
        while rest:
            rest = rest[self._file.write(rest) :]

    def _begin_part(self) -> None:
        """Rename the parts, and begin a new one, unless another writer of this log has just done so."""
        if _is_at(self._path, self._file.fileno()):
            for number in range(OLD_PARTS, 0, -1):
                newer = old_part(self._path, number - 1)
                if os.path.exists(newer):
                    newer.replace(old_part(self._path, number))
        self._follow_newest()

    def _follow_newest(self) -> None:
        """Open the newest part if another one is open, because this or another writer has renamed it."""
        if not _is_at(self._path, self._file.fileno()):
            self._file.close()
            self._file = self._path.open("ab", buffering=0)


def _is_at(path: Path, descriptor: int) -> bool:
    """Return whether a path names the file that is open."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def old_part(log: Path, number: int) -> Path:
    """Return where the part is before which `number` others were written.

    >>> old_part(Path("engine-0.log"), 0), old_part(Path("engine-0.log"), 2)
    (PosixPath('engine-0.log'), PosixPath('engine-0.log.2'))
    """
    return log.with_name(f"{log.name}.{number}") if number else log


def parts_of(log: Path) -> list[Path]:
    """Return the parts of a log that there are, the newest first."""
    parts = [old_part(log, number) for number in range(OLD_PARTS + 1)]
    return [part for part in parts if os.path.exists(part)]


class PipedLog(asyncio.Protocol):
    """Append to a log what processes write into a pipe, of which each of them has `writing_end`.

        log = await PipedLog.open(logs / "reward.log", on_failure)
        await spawn(…, output=log.writing_end)
        await log.close()                        # what still has the other end can write no more

    Args:
        on_failure: called if the log cannot be written. Its processes cannot print from then on.
    """

    def __init__(self, path: Path, writing_end: int, on_failure: Callable[[Exception], None]) -> None:
        self.writing_end = writing_end
        self._path = path
        self._log = RotatingLog(path)
        self._on_failure = on_failure
        self._pipe: asyncio.BaseTransport | None = None
        self._has_ended = asyncio.Event()

    @classmethod
    async def open(cls, path: Path, on_failure: Callable[[Exception], None]) -> "PipedLog":
        """Open the log and the pipe.

        Raises:
            OSError: the log cannot be opened.
        """
        reading_end, writing_end = os.pipe()
        try:
            log = cls(path, writing_end, on_failure)
        except BaseException:
            os.close(reading_end)
            os.close(writing_end)
            raise
        await asyncio.get_running_loop().connect_read_pipe(lambda: log, os.fdopen(reading_end, "rb"))
        return log

    async def close(self) -> None:
        """Write what is in the pipe by now, and close it. A process that its processes have left may hold it open."""
        os.close(self.writing_end)
        try:
            async with asyncio.timeout(OUTPUT_SECONDS):
                await self._has_ended.wait()
        except TimeoutError:
            assert self._pipe is not None
            self._pipe.close()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pipe = transport

    def data_received(self, data: bytes) -> None:
        try:
            with writing(self._path):
                self._log.write(data)
        except (DiskError, OSError) as error:
            assert self._pipe is not None
            self._pipe.close()
            self._on_failure(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._log.close()
        self._has_ended.set()
