"""Append what a process prints to its log, logs/<role>.log, and keep the last lines for a message about its end."""

import os
from collections import deque
from pathlib import Path
from typing import BinaryIO

OUTPUT_SECONDS = 1.0  # for the rest of a dead process's output
SHOWN_LINES = 15
SHOWN_BYTES = 4096  # of each of them
MAX_LINE = 1 << 20  # bytes; the rest of a longer line is in the log alone


def open_log(path: Path) -> BinaryIO:
    """Open a log to append to it. Only this user may read it: SGLang prints its settings, the run's key among them."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab", buffering=0)


class LastLines:
    """Split the output of one process into lines, piece by piece, and keep the last ones.

    Its log also holds what earlier processes of this role have said. A message about this process shows none of that.
    """

    def __init__(self) -> None:
        self._last: deque[bytes] = deque(maxlen=SHOWN_LINES)
        self._unfinished = b""

    def add(self, piece: bytes) -> list[str]:
        """Take a piece, and return the lines that it completes, each of at most `MAX_LINE` bytes."""
        lines = (self._unfinished + piece).split(b"\n")
        *whole, self._unfinished = [line[:MAX_LINE] for line in lines]
        self._last.extend(line[:SHOWN_BYTES] for line in whole)
        return [line.decode(errors="replace") for line in whole]

    @property
    def text(self) -> str:
        """Return the last lines, each indented. The last one may be unfinished."""
        unfinished = [self._unfinished[:SHOWN_BYTES]] if self._unfinished else []
        shown = [*self._last, *unfinished][-SHOWN_LINES:]
        return "\n".join(f"    {line.decode(errors='replace').rstrip()}" for line in shown)
