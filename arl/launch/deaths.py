"""Find out from the deaths and logs of processes why a run ended."""

import asyncio
from collections.abc import Iterable, Sequence

from arl.launch.base import Process


async def first_death(processes: Sequence[Process], seconds: float) -> Process | None:
    """Wait at most `seconds` until one of `processes` has ended, and return it; None: all of them run.

    If several have ended, one that a signal killed is returned, because its loss may have ended the others.
    """
    if not processes:
        return None
    endings = {asyncio.create_task(process.ended()): process for process in processes}
    try:
        await asyncio.wait(endings, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        dead = [process for ending, process in endings.items() if ending.done()]
    finally:
        for ending in endings:
            ending.cancel()
    killed = [process for process in dead if _was_killed(process)]
    return next(iter(killed or dead), None)


def _was_killed(process: Process) -> bool:
    code = process.exit_code
    return code is not None and code < 0


def log_ends(processes: Iterable[Process], side: str) -> str:
    """Return the last lines of the logs of the processes whose role is `side` and a number, such as engine-0."""
    ends = [process.last_words() for process in processes if process.role.startswith(f"{side}-")]
    return "".join(f"\n{end}" for end in ends)
