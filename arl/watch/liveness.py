"""Tell whether the controller of a run still runs, from any host that sees the run's directory.

run.lock is held ─► it runs          status.json is new ─► it runs          neither: what is known of its process
"""

import platform
from pathlib import Path

from arl.launch.resident_memory import started_at
from arl.metrics.run_files import LOCK
from arl.metrics.run_status import RunStatus


def is_locked(run: Path) -> bool:
    """Return whether a process of this host holds the lock of the run. Nothing is locked to find that out.

    The kernel lists the locks of its own processes, so False says little where the controller is elsewhere.
    """
    file = run / LOCK
    if not file.exists():
        return False
    inode = str(file.stat().st_ino)
    fields = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(inode == place.rpartition(":")[2] for lock in fields for place in lock if place.count(":") == 2)


def describe_silence(run: Path, status: RunStatus) -> str:
    """Describe a status that is old: is its controller gone, or does it hang?"""
    place = f"process {status.pid} on {status.host}"
    silence = f"the controller ({place}) has not written for {status.age:.0f} s"
    if is_locked(run):
        return f"{silence}; the run's lock is held, so it runs, and hangs or is stopped"
    if status.host != platform.node():
        return f"{silence}; whether it still runs can be seen on {status.host} alone"
    if started_at(status.pid) is None:
        return f"{silence}; there is no such process any more: it was killed"
    return f"{silence}; a process of this id runs, but does not hold the run's lock: it is another one"
