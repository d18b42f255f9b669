"""Engines join a pool, are removed and lost; processes are fakes."""

import asyncio
import contextlib
import dataclasses
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arl import clock
from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.errors import EngineError, InputError, ProcessDied, leaves
from arl.launch.base import Node, Resources
from arl.run.control import JoinEngine
from arl.run.engine_pool import EnginePool, open_engine_pool
from tests.fakes import NullEngine

RECIPE = load_recipe(Path("recipes/quickstart.yaml"), ["engine.replicas=1", "engine.max_restarts=0"])
START_SECONDS = 5.0


class FakeProcess:
    """Is ready at once, and ends when it is killed or stopped."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.pid = 17
        self.over = asyncio.Event()

    @property
    def exit_code(self) -> int | None:
        return -9 if self.over.is_set() else None

    async def ready(self, seconds: float) -> str:
        return self.role

    async def ended(self) -> str:
        await self.over.wait()
        return f"{self.role} was killed by SIGKILL"

    async def died(self) -> ProcessDied:
        return ProcessDied(await self.ended())

    async def wait_then_kill_group(self, seconds: float) -> bool:
        was_over = self.over.is_set()
        self.over.set()
        return was_over

    async def stop(self, seconds: float) -> None:
        self.over.set()

    def log_tail(self) -> str:
        return "It has no log."


@dataclasses.dataclass(frozen=True)
class FakeServers:
    """Starts fakes in some seconds."""

    resources: Any
    recipe: Any = RECIPE
    side: str = "engine"
    launcher: Any = dataclasses.field(
        default_factory=lambda: SimpleNamespace(nodes=[Node("n1", 8, ("0", "1", "2"))], lost_nodes=())
    )
    started: list[FakeProcess] = dataclasses.field(default_factory=list)
    without_room: set[int] = dataclasses.field(default_factory=set)

    async def start(self, i: int) -> FakeProcess:
        await asyncio.sleep(START_SECONDS)
        if i in self.without_room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.started.append(FakeProcess(f"engine-{i}"))
        return self.started[-1]

    @contextlib.asynccontextmanager
    async def connect(self, url: str, sender: object, i: int) -> AsyncIterator[NullEngine]:
        yield NullEngine(lambda _: 1)


def changed(scenario: Callable[[EnginePool, FakeServers], Awaitable[None]], recipe: Recipe = RECIPE) -> list[str]:
    """Change a pool of one engine, which has one GPU of three, and return its notes. It leaves no task behind."""
    notes: list[str] = []

    async def main() -> None:
        servers = FakeServers({0: Resources(1, ("0",))}, recipe)
        first = await servers.start(0)
        try:
            async with open_engine_pool(servers, [first], notes.append) as pool:  # type: ignore[arg-type, list-item]
                await scenario(pool, servers)
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}

    clock.run(main, virtual=True)
    return notes


EXTERNAL = JoinEngine(name="engine-n3-9ed7-0", url="http://127.0.0.1:9", node="n3", pid=4)


def test_an_engine_that_has_joined_keeps_its_name_and_is_given_up_by_an_error() -> None:
    async def scenario(pool: EnginePool, _: FakeServers) -> None:
        assert (await pool.join(EXTERNAL)).startswith(EXTERNAL.name)
        replica = pool.router.replica(1)
        assert replica is not None
        assert (replica.name, replica.is_external) == (EXTERNAL.name, True)
        assert await pool.router._is_lost(replica, EngineError("refused"))
        while len(pool.members) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    assert changed(scenario)[-1].endswith("refused\nThe run goes on; it has 1 engine")


def test_a_full_disk_that_keeps_an_engine_from_its_restart_costs_the_run_that_engine() -> None:
    recipe = load_recipe(Path("recipes/quickstart.yaml"), ["engine.replicas=1", "engine.min_replicas=1"])

    async def scenario(pool: EnginePool, servers: FakeServers) -> None:
        await pool.join(EXTERNAL)
        servers.without_room.add(0)
        servers.started[0].over.set()
        while len(pool.members) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    note = changed(scenario, recipe)[-1]
    assert "engine-0 cannot be started" in note
    assert note.endswith("No space left on device\nThe run goes on; it has 1 engine")


def test_fewer_engines_than_min_replicas_end_the_run_with_the_death_of_the_last_one_too_many() -> None:
    recipe = load_recipe(Path("recipes/quickstart.yaml"), ["engine.replicas=2", "engine.max_restarts=0"])

    async def scenario(pool: EnginePool, servers: FakeServers) -> None:
        await pool.join(EXTERNAL)
        servers.started[0].over.set()
        await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        changed(scenario, recipe)
    message = str(next(leaves(raised.value)))
    assert "engine-0 was killed by SIGKILL" in message
    assert "engine.max_restarts 0 allows no more" in message
    assert message.endswith("1 engines are left, and engine.min_replicas is 2")


def test_the_only_engine_stays_and_what_is_no_engine_cannot_be_removed() -> None:
    async def scenario(pool: EnginePool, servers: FakeServers) -> None:
        with pytest.raises(InputError, match="is the run's only engine"):
            await pool.remove("engine-0")
        await pool.join(EXTERNAL)
        assert "0 open requests go on elsewhere" in await pool.remove("engine-0")
        assert servers.started[0].over.is_set()
        with pytest.raises(InputError, match=r"the run has no such engine; it has engine-n3-9ed7-0$"):
            await pool.remove("engine-0")

    changed(scenario)
