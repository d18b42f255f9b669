"""Start teachers that are engines, keep them alive, and ask them about finished episodes.

    objective.teacher, place engine ─► a server for each path ─► a router of one slot ─► supervised as engines are
    an episode has ended ─► its trajectory ─► TeacherEngine.score ─► Trajectory.teacher

A teacher's weights never change. Whoever waits for a teacher that is being restarted is answered by its successor.
"""

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from arl.config.recipe import Recipe
from arl.engine.backend import find_in_process_backend
from arl.engine.router import Router
from arl.engine.supervisor import EngineSupervisor
from arl.launch.base import Launcher, Resources
from arl.launch.run_secrets import RunSecrets
from arl.models.model_files import local_copy
from arl.run.processes import EngineServers
from arl.types import ScoreRequest, StartingVersions, Trajectory

SIDE = "teacher"  # begins the role of each server
AT_ONCE = 64  # requests that a teacher has open: it prefills them together; the deadline of one counts the others


@dataclass
class TeacherEngine:
    """Add to trajectories what one teacher says of their sampled tokens."""

    router: Router
    temperature: float
    top_k: int
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    async def score(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with the teacher's scores; as it is, if it has no loss token."""
        at = np.flatnonzero(trajectory.loss_mask)
        if not len(at):
            return trajectory
        token_ids = tuple(trajectory.token_ids[: at[-1] + 1].tolist())
        name = f"{SIDE}-{next(self._numbers)}"
        async with self._room:
            scores = await self.router.score(ScoreRequest(name, token_ids, int(at[0]), self.temperature, self.top_k))
        missing = len(trajectory.token_ids) - len(token_ids)
        padded = {
            name: np.pad(column, [(0, missing)] + [(0, 0)] * (column.ndim - 1))
            for name, column in msgspec.structs.asdict(scores).items()
        }
        return msgspec.structs.replace(trajectory, teacher=msgspec.structs.replace(scores, **padded))


Teachers = Mapping[str, TeacherEngine]  # by data source


def _for_sources(recipe: Recipe, routers: Mapping[str, Router]) -> Teachers:
    """Return the teacher of each source, from the routers by path."""
    section = recipe.objective.teacher
    assert section is not None
    temperature = recipe.rollout.temperature
    return {name: TeacherEngine(routers[section.path_of(name)], temperature, section.top_k) for name in recipe.sources}


@contextlib.asynccontextmanager
async def open_teachers(
    recipe: Recipe,
    places: list[Resources],
    launcher: Launcher,
    trust: RunSecrets,
    note: Callable[[str], None],
) -> AsyncIterator[Teachers]:
    """Start a server for each teacher, and yield what asks them. A server that dies is replaced.

    Args:
        places: of each teacher; none: there are no teachers that are engines.
        note: is called with one line for each recovery.
    """
    if not places:
        yield {}
        return
    section = recipe.objective.teacher
    assert section is not None
    routers: dict[str, Router] = {}
    async with asyncio.TaskGroup() as tasks:
        watchers = []
        for i, (path, resources) in enumerate(zip(section.paths, places, strict=True)):
            served = StartingVersions(str(local_copy(path).resolve()))
            servers = EngineServers(recipe.without_lora, served, {i: resources}, launcher, trust, side=SIDE)
            router = routers[path] = Router([None])
            supervisor = EngineSupervisor(
                router,
                slot=0,
                start=functools.partial(servers.start, i),
                connect=functools.partial(servers.connect, replica=i),
                startup_seconds=recipe.deadlines.startup,
                max_restarts=recipe.engine.max_restarts,
                note=note,
            )
            server = await servers.start(i)
            watchers.append(tasks.create_task(supervisor.supervise(server), name=f"watcher of {SIDE}-{i}"))
        try:
            yield _for_sources(recipe, routers)
        finally:
            for watcher in watchers:  # the launcher stops the processes
                watcher.cancel()


@contextlib.asynccontextmanager
async def open_teachers_in_process(recipe: Recipe) -> AsyncIterator[Teachers]:
    """Open each teacher in this process; its prefills take virtual time."""
    section = recipe.objective.teacher
    if section is None or section.place != "engine":
        yield {}
        return
    backend = find_in_process_backend(recipe.engine.kind)
    async with contextlib.AsyncExitStack() as stack:
        routers = {}
        for path in section.paths:
            engine = backend.open_in_process(recipe.without_lora, StartingVersions(str(local_copy(path))))
            routers[path] = Router([await stack.enter_async_context(engine)])
        yield _for_sources(recipe, routers)
