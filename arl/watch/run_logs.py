"""Show the logs of a run's processes, the last lines of each, and what comes after them.

A log grows by whole lines of one process, so lines of several logs are shown one after the other, the role in front.
"""

import io
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from arl.errors import InputError
from arl.files import is_locked
from arl.metrics.run_files import LOCK, LOGS
from arl.metrics.run_status import STATUS_FILE, read_status, require_run
from arl.watch.top import silence

PERIOD = 0.25  # seconds between two looks
TAIL_BYTES = 1 << 20  # at the end of a log, in which its last lines are looked for


@dataclass
class RoleLog:
    """Read one log from where it was read to."""

    role: str
    path: Path
    at: int = 0  # bytes that were read

    def new_lines(self, is_last: bool = False) -> list[str]:
        """Return the whole lines that have been added; at last also one that has no end."""
        with self.path.open("rb") as file:
            file.seek(self.at)
            added = file.read()
        if not is_last:
            added = added[: added.rfind(b"\n") + 1]
        self.at += len(added)
        return added.decode(errors="replace").removesuffix("\n").split("\n") if added else []

    def seek_last(self, count: int) -> None:
        """Go to where the last `count` lines begin."""
        with self.path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - TAIL_BYTES))
            lines = io.BytesIO(file.read(TAIL_BYTES)).readlines()  # a progress bar of a thousand \r is one line
        self.at = end - sum(len(line) for line in (lines[-count:] if count else []))


def find_logs(run: Path, role: str | None) -> list[RoleLog]:
    """Find the logs of a run, by role; `engine` stands for engine-0, engine-1 …, also those that have joined.

    Raises:
        InputError: there is no such run, no log, or none of this role.
    """
    require_run(run)
    directory = run / LOGS
    logs = [RoleLog(str(path.relative_to(directory).with_suffix("")), path) for path in directory.rglob("*.log")]
    found = [log for log in logs if role is None or log.role == role or log.role.startswith(f"{role}-")]
    if found:
        return sorted(found, key=lambda log: log.role)
    there = f"there are {', '.join(sorted(log.role for log in logs))}" if logs else "it holds no log"
    raise InputError(f"ROLE {role or 'any'!r}: has no log in {directory}; {there}")


def show_logs(run: Path, role: str | None, count: int, show: Callable[[str], object], follow: bool = False) -> None:
    """Show the last `count` lines of each log; with `follow`, then what is added, until the run has ended.

    Consumes new lines; waits PERIOD for more; unblocked by the clock alone. Ends by Ctrl-C as well.
    """
    logs = find_logs(run, role)
    has_prefix = len(logs) > 1 or (follow and role is None)
    for log in logs:
        log.seek_last(count)
    while True:
        is_last = not follow or _has_ended(run)  # before the look, so that nothing is missed
        known = {log.path for log in logs}
        logs += [log for log in find_logs(run, role) if log.path not in known]  # processes that start later
        for log in logs:
            for line in log.new_lines(is_last):
                show(f"{log.role} | {line}" if has_prefix else line)
        if is_last:
            return
        time.sleep(PERIOD)


def _has_ended(run: Path) -> bool:
    """Return whether nothing more will come: the lock is free, and no other host says that it goes on."""
    if is_locked(run / LOCK):
        return False
    status = read_status(run) if (run / STATUS_FILE).exists() else None
    return status is None or bool(status.end) or silence(status) is not None
