"""Memory of this machine, in bytes, as Linux tells it."""

import re
from pathlib import Path


def free_memory() -> int:
    """What this process and those it starts may still use, on this host or in its control group; caches given up."""
    free = told("MemAvailable", "/proc/meminfo")
    group = Path("/sys/fs/cgroup")
    limit = (group / "memory.max").read_text().strip() if (group / "memory.max").exists() else "max"
    if limit == "max":
        return free
    cached = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
    assert cached is not None, "the control group tells nothing of its file cache"
    return min(free, int(limit) - int((group / "memory.current").read_text()) + int(cached[1]))


def peak_resident() -> int:
    """Most that this process ever had resident; ru_maxrss would begin with what its parent had."""
    return told("VmHWM", "/proc/self/status")


def told(name: str, file: str) -> int:
    """By a line like `name: 12 kB`."""
    found = re.search(rf"^{name}:\s*(\d+) kB", Path(file).read_text(), re.MULTILINE)
    assert found is not None, f"{file} has no {name}"
    return 1024 * int(found[1])
