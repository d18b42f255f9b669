"""Split the output of a process into lines, and keep the last ones for a message about its end."""

from collections import deque

SHOWN_LINES = 15
SHOWN_BYTES = 4096  # of each of them
LONGEST_LINE = 1 << 20  # bytes; the rest of a longer line is in the log alone


class LastLines:
    """Take the output of one process, piece by piece.

    Its log also holds what earlier processes of this role have said, and those of earlier attempts at the run. A
    message about this process shows nothing of that.
    """

    def __init__(self) -> None:
        self._last: deque[bytes] = deque(maxlen=SHOWN_LINES)
        self._unfinished = b""

    def add(self, piece: bytes) -> list[str]:
        """Take a piece, and return the lines that it completes, each of at most `LONGEST_LINE` bytes."""
        lines = (self._unfinished + piece).split(b"\n")
        *whole, self._unfinished = [line[:LONGEST_LINE] for line in lines]
        self._last.extend(line[:SHOWN_BYTES] for line in whole)
        return [line.decode(errors="replace") for line in whole]

    @property
    def text(self) -> str:
        """Return the last lines, each indented. The last one may be unfinished."""
        unfinished = [self._unfinished[:SHOWN_BYTES]] if self._unfinished else []
        shown = [*self._last, *unfinished][-SHOWN_LINES:]
        return "\n".join(f"    {line.decode(errors='replace').rstrip()}" for line in shown)
