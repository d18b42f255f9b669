"""Notice that another process has lowered the resource limits of this one, as any process of the same user can.

What this process does then fails, such as the start of a program, although no answer is at fault.
"""

import resource
import sys

# By number. Of synonyms the first, because `dir` sorts: RLIMIT_NOFILE, and not RLIMIT_OFILE.
NUMBERS = {getattr(resource, name): name for name in reversed(dir(resource)) if name.startswith("RLIMIT_")}
OWN_CHANGES = ("resource.setrlimit", "resource.prlimit")  # audit events of Python, raised before the change


class LimitWatch:
    """Compare the soft limits of this process with those at the time when this object was made."""

    def __init__(self) -> None:
        self._limits = _read()
        self._has_changed_them = False

    def allow_own_changes(self) -> None:
        """Take limits that Python code of this process sets from now on for the right ones."""
        sys.addaudithook(self._hear)

    def lowered(self) -> list[str]:
        """Return the names of the limits that somebody else has lowered, such as RLIMIT_FSIZE."""
        now = _read()
        if self._has_changed_them:
            self._has_changed_them = False
            self._limits = now
        if now == self._limits:  # in microseconds, because a lane looks after each call
            return []
        each = zip(NUMBERS.values(), now, self._limits, strict=True)
        return [name for name, limit, before in each if _size(limit) < _size(before)]

    def _hear(self, event: str, arguments: object) -> None:
        if event in OWN_CHANGES:
            self._has_changed_them = True


def _read() -> list[int]:
    """Return the soft limits in the order of NUMBERS."""
    return [resource.getrlimit(number)[0] for number in NUMBERS]


def _size(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit
