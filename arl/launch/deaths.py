"""What the deaths and logs of processes say about the end of a run."""

import asyncio
from collections.abc import Iterable, Sequence

from arl.launch.base import Process


async def first_death(processes: Sequence[Process], seconds: float) -> Process | None:
    """Wait at most `seconds` for one of `processes` to have ended; None: all of them run.

    Of several that have ended, one that a signal killed comes first, because the others may have ended of its loss.
    """
    endings = {asyncio.create_task(process.ended()): process for process in processes}
    if not endings:
        return None
    try:
        await asyncio.wait(endings, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        dead = [process for ending, process in endings.items() if ending.done()]
        return min(dead, key=_was_not_killed, default=None)
    finally:
        for ending in endings:
            ending.cancel()


def _was_not_killed(process: Process) -> bool:
    return (process.exit_code or 0) >= 0


def log_ends(processes: Iterable[Process], side: str) -> str:
    """Return the last lines of the logs of the processes whose role is `side` and a number."""
    return "".join(f"\n{process.last_words()}" for process in processes if process.role.startswith(f"{side}-"))
