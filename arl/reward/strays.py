"""Kill what a reward worker has left behind when something else has killed it.

A worker kills what its calls have started. If a program kills the worker first, what it has started in sessions of its
own has no parent left that knows of it. So each worker has a mark in its environment, which its descendants inherit.
"""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Iterator
from pathlib import Path

MARK = "ARL_REWARD_WORKER"
PAUSE = 0.01  # seconds for killed processes to be gone
MOST_ROUNDS = 500


def new_mark() -> str:
    """Return a mark that no other worker has."""
    return secrets.token_hex(16)


async def kill_marked(mark: str) -> None:
    """Kill processes with a mark until there are none.

    Unblocked by the clock: each round finds what the processes of the last one had started.
    """
    for _ in range(MOST_ROUNDS):
        found = list(_find_marked(mark))
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(PAUSE)


def _find_marked(mark: str) -> Iterator[int]:
    """Yield the processes that were started with a mark. A process that has ended has no environment."""
    variable = f"{MARK}={mark}".encode()
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
            if variable in (directory / "environ").read_bytes().split(b"\0"):
                yield int(directory.name)
