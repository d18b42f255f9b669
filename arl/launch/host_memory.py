"""Read the memory of this machine and of this process from Linux, in bytes."""

import os
import re
from pathlib import Path


def free_memory() -> int:
    """Return what this process and those it starts may still use, on this host and in their control group.

    File caches count as free, because Linux drops them when memory is needed.
    """
    on_host = 1024 * _number(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo"))
    group = Path("/sys/fs/cgroup")
    limit_file = group / "memory.max"
    if not os.path.exists(limit_file):
        return on_host
    limit = limit_file.read_text().strip()
    if limit == "max":
        return on_host
    used = int((group / "memory.current").read_text())
    cached = _number(r"inactive_file (\d+)", group / "memory.stat")
    return min(on_host, int(limit) - used + cached)


def peak_resident() -> int:
    """Return the most that this process ever had resident. ru_maxrss would begin with what its parent had."""
    return 1024 * _number(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status"))


def _number(pattern: str, file: Path) -> int:
    """Return the number in the line of `file` that begins with `pattern`."""
    found = re.search(f"^{pattern}", file.read_text(), re.MULTILINE)
    assert found is not None, f"{file} has no line {pattern}"
    return int(found[1])
