"""Turn what ended a run into one exception that says why."""

import contextlib
from collections.abc import AsyncIterator

from safetensors import SafetensorError

from arl.engine.router import DEATH_SECONDS
from arl.errors import ArlError, EngineError, ProcessDied, RunError, TrainerError, leaves
from arl.launch.base import Launcher
from arl.launch.deaths import first_death, log_ends


@contextlib.asynccontextmanager
async def explain_deaths(launcher: Launcher) -> AsyncIterator[None]:
    """Where a process has died, raise that instead of the broken connections it caused; else show engines' logs."""
    try:
        yield
    except Exception as error:
        causes = list(leaves(error))
        if any(isinstance(cause, EngineError | TrainerError) for cause in causes):
            known = next((cause for cause in causes if isinstance(cause, ProcessDied)), None)
            ranks = [process for process in launcher.processes if process.role.startswith("trainer-")]
            dead = None if known else await first_death(ranks, DEATH_SECONDS)
            death = await dead.died() if dead else known
            told = [cause for cause in causes if isinstance(cause, EngineError)]
            if death is None and told:
                raise EngineError(f"{told[0]}.{log_ends(launcher.processes, 'engine')}") from error
            raise death or error from error
        raise


@contextlib.asynccontextmanager
async def reported_failures() -> AsyncIterator[None]:
    """Raise the one exception to show: of a group, the first that says what happened; a full disk as RunError."""
    try:
        yield
    except Exception as error:
        cause = min(leaves(error), key=lambda cause: not isinstance(cause, ArlError))
        if isinstance(cause, OSError | SafetensorError):
            raise RunError(f"{cause}: is the disk full, or not writable?") from error
        raise cause from error
