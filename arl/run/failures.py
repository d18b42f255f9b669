"""Turn whatever ended a run into one exception that says why.

exceptions of many tasks ─► explain_deaths: which process died, or hangs ─► reported_failures: the one to show
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from safetensors import SafetensorError

from arl.engine.router import DEATH_SECONDS
from arl.errors import ArlError, DeadlineError, EngineError, ProcessDied, RunError, TrainerError, leaves
from arl.launch.base import Launcher, Process
from arl.launch.deaths import first_death, log_ends

SHOWN = 4  # processes whose logs an error shows, at most
STATES = {
    "T": "is stopped by a signal (SIGSTOP?)",
    "t": "is stopped by a debugger",
    "D": "is blocked in the kernel, by a disk or a device",
    "Z": "has exited",
}


@contextlib.asynccontextmanager
async def explain_deaths(launcher: Launcher) -> AsyncIterator[None]:
    """Raise what happened to a process, in the place of what the others noticed of it.

    If a process has died, that is raised instead of the broken connections that it caused. If an engine failed and
    lives, the ends of the engines' logs are added. If a deadline passed, the processes that hang are added.
    """
    try:
        yield
    except Exception as error:
        causes = list(leaves(error))
        if any(isinstance(cause, EngineError | TrainerError) for cause in causes):
            raise await _death_or_logs(causes, launcher.processes) or error from error
        for cause in causes:
            if isinstance(cause, DeadlineError):
                raise DeadlineError(f"{cause}{_describe_hanging(str(cause), launcher.processes)}") from error
        raise


async def _death_or_logs(causes: Sequence[BaseException], processes: Sequence[Process]) -> RunError | None:
    """Return the death of a process, or the first failure of an engine with the engines' logs, or None."""
    for cause in causes:
        if isinstance(cause, ProcessDied):
            return cause
    ranks = [process for process in processes if process.role.startswith("trainer-")]
    dead = await first_death(ranks, DEATH_SECONDS)
    if dead is not None:
        return await dead.died()
    for cause in causes:
        if isinstance(cause, EngineError):
            return EngineError(f"{cause}.{log_ends(processes, 'engine')}")
    return None


def _describe_hanging(message: str, processes: Sequence[Process]) -> str:
    """Describe the processes that cannot run, else those of the trainer, with the ends of their logs.

    Leaves out those that the message names already, by their process ids.
    """
    running = [process for process in processes if process.exit_code is None]
    unnamed = [process for process in running if f"pid {process.pid}" not in message]
    states = {process: STATES.get(_state(process.pid), "runs") for process in unnamed}
    blocked = [process for process, state in states.items() if state != "runs"]
    shown = blocked or [process for process in unnamed if process.role.startswith("trainer-")]
    lines = [f"\n{process} {states[process]}. {process.last_words()}" for process in shown[:SHOWN]]
    return "".join(lines)


def _state(pid: int) -> str:
    """Return the letter that Linux gives to the state of a process; empty if there is none of this id."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    after_name = stat.rpartition(")")[2]
    return after_name.split()[0]


@contextlib.asynccontextmanager
async def reported_failures() -> AsyncIterator[None]:
    """Raise one exception of a group: the first that says what happened. A full disk becomes a RunError."""
    try:
        yield
    except Exception as error:
        cause = cause_to_show(error)
        if isinstance(cause, OSError | SafetensorError):
            raise RunError(f"{cause}: is the disk full, or not writable?") from error
        raise cause from error


def cause_to_show(error: BaseException) -> BaseException:
    """Return the exception of a group that says what happened: the first that arl has raised, or the first."""
    causes = list(leaves(error))
    known = [cause for cause in causes if isinstance(cause, ArlError)]
    return (known or causes)[0]
