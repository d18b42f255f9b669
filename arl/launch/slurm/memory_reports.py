"""Carry what a process of a Slurm step takes of its node's memory, among the output of the process.

runner: memory_report ─► output of srun ─► MemoryReports ─► newest
                                                  └─► the output alone, for the log

A report comes every few seconds for as long as a run lasts, so logs are kept free of them. It begins with a control
character that no log holds, because it may come in the middle of a line. The runner imports this module, so it uses
the standard library only.
"""

import re

MARK = b"\x1e"  # ASCII's record separator
REPORT = re.compile(MARK + rb"memory (\d{1,20})\n")
LONGEST = 40  # bytes of a report


def memory_report(num_bytes: int) -> bytes:
    """Write a report.

    >>> memory_report(123)
    b'\\x1ememory 123\\n'
    """
    return MARK + b"memory %d\n" % num_bytes


class MemoryReports:
    """Take the reports out of the output of a step, however it is cut into pieces."""

    def __init__(self) -> None:
        self.newest: int | None = None  # bytes
        self._held = b""  # the end of the output, which may be the beginning of a report

    def take(self, piece: bytes) -> bytes:
        """Return the output without reports. An empty piece ends it, and returns what was held back."""
        output = self._held + piece
        for found in REPORT.finditer(output):
            self.newest = int(found[1])
        output = REPORT.sub(b"", output)
        begin = output.rfind(MARK)
        is_begun = begin >= 0 and len(output) - begin < LONGEST and b"\n" not in output[begin:]
        if not piece or not is_begun:
            begin = len(output)
        self._held = output[begin:]
        return output[:begin]
