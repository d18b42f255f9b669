"""Read the memory of this machine and of this process, in bytes."""

from pathlib import Path

import psutil


def free_memory() -> int:
    """Return what this process and those it starts may still use, on this host and in their control group.

    File caches count as free, because Linux drops them when memory is needed.
    """
    on_host = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return on_host
        used = int((group / "memory.current").read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except FileNotFoundError:  # no control group of version 2 limits it
        return on_host
    return min(on_host, int(limit) - used + int(statistics["inactive_file"]))


def peak_resident() -> int:
    """Return the most that this process ever had resident. ru_maxrss begins with the parent's."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmHWM"].split()[0])
