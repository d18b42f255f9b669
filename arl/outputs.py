"""Keep a command going whose output cannot be written: a closed pipe, a terminal that is gone, a full disk.

    print, rich, warnings ─► sys.stdout, sys.stderr ─► their file descriptors
                                                          └─► fail, or nobody reads them: from then on LOG of the run

The log takes the place of the file descriptor, so what libraries and child processes print goes there as well.
"""

import io
import os
import select
import sys
from pathlib import Path
from typing import Any, ClassVar

LOG = "console.log"  # in the directory of a run's logs
BLOCKED_SECONDS = 10.0  # in which somebody reads a pipe or a terminal (Ctrl-S) that is full, or it is given up


class LastingOutput(io.FileIO):
    """Write to a file descriptor, and to `log` as soon as that one cannot be written."""

    log: ClassVar[Path] = Path(os.devnull)  # of all outputs of this process
    replaced: ClassVar[set[int]] = set()  # file descriptors that lead to the log

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)

    def write(self, data: Any) -> int:
        """Write a part of `data`, at most as much as a pipe takes at once, and return its size."""
        part = memoryview(data)[: select.PIPE_BUF]
        descriptor = self.fileno()
        try:
            if not select.select([], [descriptor], [], BLOCKED_SECONDS)[1]:
                raise TimeoutError(f"nobody has read it for {BLOCKED_SECONDS:g} s")
            return os.write(descriptor, part)
        except OSError as error:
            if descriptor in self.replaced:  # the disk of the log is full as well
                return len(part)
            self.replaced.add(descriptor)
            lead_to_log(descriptor, f"the console cannot be written ({error}): it goes on here\n")
            return self.write(part)


def lead_to_log(descriptor: int, line: str) -> None:
    """Put the log in the place of a file descriptor; /dev/null, if the log cannot be written."""
    try:
        LastingOutput.log.parent.mkdir(exist_ok=True)
        log = os.open(LastingOutput.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(log, line.encode())
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, descriptor)
    os.close(log)


def go_on_in(logs: Path) -> None:
    """Name the directory in which output goes on that cannot be written, now and later."""
    LastingOutput.log = logs / LOG
    for descriptor in LastingOutput.replaced:
        lead_to_log(descriptor, "the console cannot be written: it goes on here\n")


def make_lasting(*names: str) -> None:
    """Let the streams of these names in `sys` never fail. One that is no file, as in a test, is left as it is."""
    for name in names:
        stream = getattr(sys, name)
        try:
            descriptor = stream.fileno()
        except OSError:
            continue
        raw = io.BufferedWriter(LastingOutput(descriptor))
        setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, stream.errors, line_buffering=True))


def open_standard_files() -> None:
    """Open /dev/null where standard input, output or error is closed, so that no other file gets its number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
