"""Show the logs of a run's processes, the last lines of each, and what comes after them.

A log grows by whole lines of one process, so lines of several logs are shown one after the other, the role in front.
"""

import io
import os
import time
from collections.abc import Callable
from pathlib import Path

from arl.errors import InputError
from arl.files import is_locked
from arl.metrics.run_files import LOCK, LOGS
from arl.metrics.run_status import STATUS_FILE, read_status, require_run
from arl.watch.top import silence

PERIOD = 0.25  # seconds between two looks
TAIL_BYTES = 1 << 20  # at the end of a log, in which its last lines are looked for


def find_logs(run: Path, role: str | None) -> dict[str, Path]:
    """Find the logs of a run, by role; `engine` stands for engine-0, engine-1 …, also those that have joined.

    Raises:
        InputError: there is no such run, no log, or none of this role.
    """
    require_run(run)
    directory = run / LOGS
    logs = {str(path.relative_to(directory).with_suffix("")): path for path in sorted(directory.rglob("*.log"))}
    found = {name: path for name, path in logs.items() if role in (None, name) or name.startswith(f"{role}-")}
    if not found:
        raise InputError(f"ROLE {role or 'any'!r}: has no log in {directory}; there are {', '.join(logs) or 'none'}")
    return found


def show_logs(run: Path, role: str | None, count: int, show: Callable[[str], object], follow: bool = False) -> None:
    """Show the last `count` lines of each log; with `follow`, then what is added, until the run has ended.

    Consumes new lines; waits PERIOD for more; unblocked by the clock alone. Ends by Ctrl-C as well.
    """
    logs = find_logs(run, role)
    has_prefix = len(logs) > 1 or (follow and role is None)
    read = {name: tail_start(path, count) for name, path in logs.items()}  # bytes
    while True:
        is_last = not follow or _has_ended(run)  # before the look, so that nothing is missed
        for name, path in find_logs(run, role).items():  # also of processes that have started later
            lines, read[name] = new_lines(path, read.get(name, 0), is_last)
            for line in lines:
                show(f"{name} | {line}" if has_prefix else line)
        if is_last:
            return
        time.sleep(PERIOD)


def new_lines(path: Path, start: int, is_last: bool = False) -> tuple[list[str], int]:
    """Return the whole lines from a byte on, at last also one that has no end; and the byte behind them."""
    with path.open("rb") as file:
        file.seek(start)
        added = file.read()
    if not is_last:
        added = added[: added.rfind(b"\n") + 1]
    lines = added.decode(errors="replace").removesuffix("\n").split("\n") if added else []
    return lines, start + len(added)


def tail_start(path: Path, count: int) -> int:
    """Return the byte at which the last `count` lines begin."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - TAIL_BYTES))
        lines = io.BytesIO(file.read(TAIL_BYTES)).readlines()  # a progress bar of a thousand \r is one line
    return end - sum(len(line) for line in (lines[-count:] if count else []))


def _has_ended(run: Path) -> bool:
    """Return whether nothing more will come: the lock is free, and no other host says that it goes on."""
    if is_locked(run / LOCK):
        return False
    status = read_status(run) if (run / STATUS_FILE).exists() else None
    return status is None or bool(status.end) or silence(status) is not None
