"""Notice that another process has lowered the resource limits of this one, as any process of the same user can.

What this process does then fails, such as the start of a program, although no answer is at fault.
"""

import os
import resource
import sys

# By number. Of synonyms the first, because `dir` sorts: RLIMIT_NOFILE, and not RLIMIT_OFILE.
NUMBERS = {getattr(resource, name): name for name in reversed(dir(resource)) if name.startswith("RLIMIT_")}
Limits = tuple[int, int]  # soft, hard


class LimitWatch:
    """Compare the limits of this process with those at the time when this object was made."""

    def __init__(self) -> None:
        self._limits = _read()
        self._changed_here: set[int] = set()  # numbers of limits

    def allow_own_changes(self) -> None:
        """Take limits that Python code of this process sets from now on for the right ones.

        Python raises an audit event before each of its changes.
        """
        sys.addaudithook(self._hear)

    def lowered(self) -> list[str]:
        """Return the names of the limits that somebody else has lowered, such as RLIMIT_FSIZE."""
        now = _read()
        while self._changed_here:
            number = self._changed_here.pop()
            self._limits[number] = now[number]
        if now == self._limits:  # in microseconds, because a lane looks after each call
            return []
        return [name for number, name in NUMBERS.items() if _is_lower(now[number], self._limits[number])]

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "resource.setrlimit":
            self._note(arguments[0])
        elif event == "resource.prlimit" and arguments[0] in (0, os.getpid()) and arguments[2] is not None:
            self._note(arguments[1])

    def _note(self, number: object) -> None:
        if isinstance(number, int) and number in NUMBERS:
            self._changed_here.add(number)


def _read() -> dict[int, Limits]:
    return {number: resource.getrlimit(number) for number in NUMBERS}


def _is_lower(now: Limits, before: Limits) -> bool:
    """Return whether the soft or the hard limit is."""
    return any(_size(one) < _size(other) for one, other in zip(now, before, strict=True))


def _size(limit: int) -> float:
    return float("inf") if limit == resource.RLIM_INFINITY else limit
