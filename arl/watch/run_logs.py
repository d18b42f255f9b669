"""Show the logs of a run's processes, the last lines of each, and what comes after them.

RUN/logs/<role>.log ─► its last lines ─► `follow`: what is added to any of them, until the run has ended

A log grows by whole lines of one process each, so lines of several logs are shown one after the other with their role
in front. Lines of one log keep their order; between two logs only the time of reading orders them. What is new is found
by the place in each file, never by a time, because the clocks of two hosts differ.
"""

import io
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from arl.errors import InputError
from arl.launch.file_lock import is_locked
from arl.metrics.run_files import LOCK, LOGS
from arl.metrics.run_status import STATUS_FILE, require_run
from arl.watch.liveness import StatusWatch

PERIOD = 0.25  # seconds between two looks
PIECE = 1 << 16  # bytes at the end of a log that are read first; twice as many each time that they are too few
MOST_BYTES = 1 << 25  # that are read of a log at once
LONGEST_LINE = 1 << 20  # bytes that are kept of a line whose end is not written yet

Show = Callable[[str], object]


@dataclass
class RoleLog:
    """Read one log from where it was read to."""

    role: str
    path: Path
    at: int = 0  # bytes that were read
    unfinished: bytes = b""  # the beginning of a line

    def new_lines(self) -> list[str]:
        """Return the whole lines that have been added. A log that was cut back is read from its begin.

        What there is of a line is a line as well, if it is longer than LONGEST_LINE: its end may never come.

        Raises:
            InputError: it cannot be read.
        """
        with _open_log(self.path) as log:
            if log.seek(0, os.SEEK_END) < self.at:
                self.at = 0
                self.unfinished = b""
            log.seek(self.at)
            added = log.read(MOST_BYTES)
            self.at = log.tell()
        *lines, self.unfinished = (self.unfinished + added).split(b"\n")
        if len(self.unfinished) > LONGEST_LINE:
            lines.append(self.unfinished)
            self.unfinished = b""
        return [line.decode(errors="replace") for line in lines]

    def rest(self) -> list[str]:
        """Return the line that has no end, if there is one. Called when nothing more will come."""
        rest = self.unfinished.decode(errors="replace")
        self.unfinished = b""
        return [rest] if rest else []

    def seek_last(self, count: int) -> None:
        """Go to where the last `count` lines begin.

        Raises:
            InputError: it cannot be read.
        """
        with _open_log(self.path) as log:
            last = _last_lines(log, count)
            self.at = log.seek(0, os.SEEK_END) - sum(len(line) for line in last)


def _open_log(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); move it away") from error


def _last_lines(file: BinaryIO, count: int) -> list[bytes]:
    """Return the last lines of a file, `count` at most."""
    end = file.seek(0, os.SEEK_END)
    most = min(end, MOST_BYTES)
    size = min(PIECE, most)
    tail = _bytes_before(file, end, size)
    while size < most and tail.count(b"\n") <= count:
        size = min(2 * size, most)
        tail = _bytes_before(file, end, size)
    lines = io.BytesIO(tail).readlines()  # ends at \n alone: a progress bar of a thousand \r is one line
    return lines[-count:] if count else []


def _bytes_before(file: BinaryIO, end: int, size: int) -> bytes:
    file.seek(end - size)
    return file.read(size)


def find_logs(run: Path, role: str | None) -> list[RoleLog]:
    """Find the logs of a run, by role; `engine` stands for engine-0, engine-1 …, also those that have joined.

    Raises:
        InputError: there is no such run, no log, or none of this role.
    """
    require_run(run)
    found = _logs(run, role)
    if found:
        return found
    every = [log.role for log in _logs(run, None)]
    if not every:
        raise InputError(f"{run / LOGS}: holds no log; a run has logs from the start of its processes on")
    raise InputError(f"ROLE {role!r}: has no log in {run / LOGS}; there are {', '.join(every)}")


def _logs(run: Path, role: str | None) -> list[RoleLog]:
    directory = run / LOGS
    logs = [
        RoleLog(str(path.relative_to(directory).with_suffix("")), path)
        for path in sorted(directory.rglob("*.log"))
        if os.path.isfile(path)
    ]
    if role is None:
        return logs
    return [log for log in logs if log.role == role or log.role.startswith(f"{role}-")]


def list_logs(logs: Sequence[RoleLog], show: Show) -> None:
    """Show role, size of all parts and path of each log."""
    width = max(len(log.role) for log in logs)
    for log in logs:
        size = log.path.stat().st_size
        show(f"{log.role:{width}}  {size:>12,} bytes  {log.path}")


def print_ends(logs: Sequence[RoleLog], count: int, show: Show, is_followed: bool = False) -> list[RoleLog]:
    """Show the last `count` lines of each log, and return the logs, read to their ends.

    Args:
        is_followed: `follow_logs` comes next, and shows a last line that has no end yet when it is complete.
    """
    has_prefix = len(logs) > 1
    for log in logs:
        log.seek_last(count)
        _show_lines(log, log.new_lines(), has_prefix, show)
        if not is_followed:
            _show_lines(log, log.rest(), has_prefix, show)
    return list(logs)


def follow_logs(run: Path, role: str | None, logs: list[RoleLog], show: Show) -> None:
    """Show what is added to the logs, also to those of processes that start later, until the run has ended.

    Consumes new lines; waits PERIOD for more; unblocked by the clock alone. Ends by Ctrl-C as well.
    """
    has_prefix = len(logs) > 1 or role is None
    watch = StatusWatch(run)
    while True:
        has_ended = _has_ended(run, watch)  # before the last look, so that nothing is missed
        known = {log.path for log in logs}
        logs += [log for log in _logs(run, role) if log.path not in known]
        for log in logs:
            _show_lines(log, log.new_lines(), has_prefix, show)
        if has_ended:
            break
        time.sleep(PERIOD)
    for log in logs:
        _show_lines(log, log.rest(), has_prefix, show)


def _has_ended(run: Path, watch: StatusWatch) -> bool:
    """Return whether nothing more will come: nobody holds the lock, and no other host says that it goes on."""
    if is_locked(run / LOCK):
        return False
    if not os.path.exists(run / STATUS_FILE):
        return True
    status = watch.read()
    return bool(status.end) or watch.is_silent


def _show_lines(log: RoleLog, lines: Sequence[str], has_prefix: bool, show: Show) -> None:
    prefix = f"{log.role} | " if has_prefix else ""
    for line in lines:
        show(f"{prefix}{line}")
