"""Engines are added to a pool, refuse their weights, are removed in mid-start and lost; processes are fakes."""

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
from arl.errors import EngineError, EngineLost, InputError, ProcessDied, RunError, leaves
from arl.launch.base import Node, Resources
from arl.run.control.control_messages import JoinEngine
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

    async def ends_by_itself(self, seconds: float) -> bool:
        was_over = self.over.is_set()
        self.over.set()
        return was_over

    async def stop(self, seconds: float) -> None:
        self.over.set()

    def last_words(self) -> str:
        return "It has no log."


@dataclasses.dataclass(frozen=True)
class FakeServers:
    """Starts fakes in some seconds. A server of `refusing` answers with an error, after as long again."""

    resources: Any
    recipe: Any = RECIPE
    side: str = "engine"
    launcher: Any = dataclasses.field(
        default_factory=lambda: SimpleNamespace(nodes=[Node("n1", 8, ("0", "1", "2"))], lost_nodes=())
    )
    started: list[FakeProcess] = dataclasses.field(default_factory=list)
    refusing: set[int] = dataclasses.field(default_factory=set)
    unstartable: set[int] = dataclasses.field(default_factory=set)
    without_room: set[int] = dataclasses.field(default_factory=set)
    hanging: set[int] = dataclasses.field(default_factory=set)

    async def start(self, i: int) -> FakeProcess:
        await asyncio.sleep(START_SECONDS)
        if i in self.hanging:
            await asyncio.Event().wait()
        if i in self.unstartable:
            raise ProcessDied(f"engine-{i} cannot be started")
        if i in self.without_room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.started.append(FakeProcess(f"engine-{i}"))
        return self.started[-1]

    @contextlib.asynccontextmanager
    async def connect(self, url: str, sender: object, i: int) -> AsyncIterator[NullEngine]:
        if i in self.refusing:
            await asyncio.sleep(START_SECONDS)
            raise EngineError(f"{url} refuses its weights")
        yield NullEngine(lambda _: 1)


def changed(scenario: Callable[[EnginePool, FakeServers], Awaitable[None]], recipe: Recipe = RECIPE) -> list[str]:
    """Change a pool of one engine, which has one GPU of three, and return its notes. It leaves no task behind."""
    notes: list[str] = []

    async def main() -> None:
        servers = FakeServers([Resources(1, ("0",))], recipe)
        first = await servers.start(0)
        try:
            async with open_engine_pool(servers, [first], notes.append) as pool:  # type: ignore[arg-type, list-item]
                await scenario(pool, servers)
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}

    clock.run(main, virtual=True)
    return notes


def devices(pool: EnginePool) -> list[tuple[str, ...]]:
    return sorted(resources.devices for resources in pool._starts.taken())


def test_engines_that_are_added_at_the_same_time_get_devices_of_their_own() -> None:
    async def scenario(pool: EnginePool, _: FakeServers) -> None:
        assert set(await asyncio.gather(pool.add(), pool.add())) == {"engine-1", "engine-2"}
        assert devices(pool) == [("0",), ("1",), ("2",)]
        with pytest.raises(InputError, match="an engine needs 1 free GPUs of one node, and none has them"):
            await pool.add()

    assert [note.rpartition("; ")[2] for note in changed(scenario)] == ["it has 3 engines"] * 2


def test_an_engine_that_has_joined_keeps_its_name_and_is_given_up_by_an_error() -> None:
    async def scenario(pool: EnginePool, _: FakeServers) -> None:
        guest = JoinEngine(
            name="engine-n3-9ed7-0", url="http://127.0.0.1:9", node="n3", pid=4, arl="0.1.0", model="ab12"
        )
        assert await pool.join(guest) == guest.name
        replica = pool.router.replica(1)
        assert replica is not None
        assert (replica.name, replica.is_guest) == (guest.name, True)
        assert await pool.router._is_lost(replica, EngineError("refused"))
        while len(pool.statuses()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    assert changed(scenario)[-1].endswith("refused\nThe run goes on; it has 1 engine")


def test_an_added_engine_that_refuses_its_weights_does_not_end_the_run() -> None:
    async def scenario(pool: EnginePool, servers: FakeServers) -> None:
        servers.refusing.add(1)
        with pytest.raises(EngineError, match="engine-1 refuses its weights"):
            await pool.add()
        assert servers.started[-1].over.is_set()
        assert devices(pool) == [("0",)]

    (note,) = changed(scenario)
    assert note.endswith("engine-1 refuses its weights\nThe run goes on; it has 1 engine")


def test_an_engine_that_a_full_disk_keeps_from_starting_is_an_answer_and_its_gpu_is_free_again() -> None:
    async def scenario(pool: EnginePool, servers: FakeServers) -> None:
        servers.without_room.update((1, 2))
        for _ in range(2):
            with pytest.raises(RunError, match=r"cannot be started: .*No space left"):
                await pool.add()
        assert devices(pool) == [("0",)]

    assert changed(scenario) == []


@pytest.mark.parametrize("outcome", ["it starts", "it is not startable", "the disk is full"])
def test_an_engine_can_be_removed_while_it_starts_and_nothing_is_left_of_it(outcome: str) -> None:
    can_start = outcome == "it starts"

    async def scenario(pool: EnginePool, servers: FakeServers) -> None:
        if outcome == "it is not startable":
            servers.unstartable.add(1)
        if outcome == "the disk is full":
            servers.without_room.add(1)
        adding = asyncio.create_task(pool.add())
        await asyncio.sleep(START_SECONDS / 2)
        assert await pool.remove("engine-1") == 0
        with pytest.raises(EngineLost if can_start else ProcessDied):
            await adding
        assert [process.over.is_set() for process in servers.started] == [False, True][: 1 + can_start]
        assert devices(pool) == [("0",)]
        with pytest.raises(InputError, match="is the run's only engine"):
            await pool.remove("engine-0")

    (note,) = changed(scenario)  # whoever has added it is told why it did not start, and nobody else
    assert note.endswith("was removed; 0 requests resumed; it has 1 engine")


def test_an_engine_that_is_leaving_already_is_no_engine_that_can_be_removed() -> None:
    async def scenario(pool: EnginePool, _: FakeServers) -> None:
        adding = asyncio.create_task(pool.add())
        await asyncio.sleep(START_SECONDS / 2)
        removing = asyncio.create_task(pool.remove("engine-1"))
        await asyncio.sleep(0)
        with pytest.raises(InputError, match=r"the run has no such engine; it has engine-0$"):
            await pool.remove("engine-1")
        await removing
        with pytest.raises(EngineLost):
            await adding

    changed(scenario)


def test_the_only_engine_stays_until_the_process_of_another_one_has_started() -> None:
    async def scenario(pool: EnginePool, _: FakeServers) -> None:
        adding = asyncio.create_task(pool.add())
        await asyncio.sleep(START_SECONDS / 2)
        with pytest.raises(InputError, match="is the run's only engine"):
            await pool.remove("engine-0")
        await adding
        assert await pool.remove("engine-0") == 0

    changed(scenario)


def test_a_run_ends_that_loses_its_last_engine_while_another_one_starts() -> None:
    async def scenario(pool: EnginePool, servers: FakeServers) -> None:
        adding = asyncio.create_task(pool.add())
        await asyncio.sleep(START_SECONDS / 2)
        servers.started[0].over.set()
        await adding

    with pytest.raises(ExceptionGroup) as raised:
        changed(scenario)
    assert "engine-0 was killed by SIGKILL" in " ".join(map(str, leaves(raised.value)))


def test_a_run_ends_when_the_engine_that_was_added_refuses_and_no_other_one_is_left() -> None:
    async def scenario(pool: EnginePool, servers: FakeServers) -> None:
        servers.refusing.add(1)
        adding = asyncio.create_task(pool.add())
        await asyncio.sleep(START_SECONDS * 1.5)
        servers.started[0].over.set()
        await adding

    with pytest.raises(ExceptionGroup) as raised:
        changed(scenario)
    assert "engine-1 refuses its weights\nno engine is left" in " ".join(map(str, leaves(raised.value)))


async def begin_to_add(pool: EnginePool) -> None:
    """Have somebody ask for one more engine who is gone, as the run is, before it has started."""
    adding = asyncio.create_task(pool.add())
    await asyncio.sleep(START_SECONDS / 2)
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding


def test_an_engine_that_is_being_started_when_the_run_ends_is_ended_with_it() -> None:
    processes: list[list[FakeProcess]] = []

    async def scenario(pool: EnginePool, servers: FakeServers) -> None:
        processes.append(servers.started)
        await begin_to_add(pool)

    assert changed(scenario) == []
    assert [process.over.is_set() for process in processes[0]] == [False, True]  # the launcher ends the first one


def test_so_is_one_that_is_being_started_when_the_run_fails() -> None:
    processes: list[list[FakeProcess]] = []

    async def scenario(pool: EnginePool, servers: FakeServers) -> None:
        processes.append(servers.started)
        await begin_to_add(pool)
        raise RunError("the trainer died")

    with pytest.raises(ExceptionGroup):
        changed(scenario)
    assert [process.over.is_set() for process in processes[0]] == [False, True]


def test_a_start_that_hangs_when_the_run_ends_is_given_up_at_a_deadline_and_reported() -> None:
    async def scenario(pool: EnginePool, servers: FakeServers) -> None:
        servers.hanging.add(1)
        await begin_to_add(pool)

    (note,) = changed(scenario)
    assert note == f"engine-1: its start was given up after {RECIPE.deadlines.shutdown:g} s (deadlines.shutdown)"


@pytest.mark.parametrize("unstartable", ["unstartable", "without_room"])
def test_a_start_that_fails_while_the_run_ends_is_reported_once(unstartable: str) -> None:
    async def scenario(pool: EnginePool, servers: FakeServers) -> None:
        getattr(servers, unstartable).add(1)
        await begin_to_add(pool)

    (note,) = changed(scenario)
    assert "engine-1 cannot be started" in note


def test_a_full_disk_that_keeps_an_engine_from_its_restart_costs_the_run_that_engine() -> None:
    recipe = load_recipe(Path("recipes/quickstart.yaml"), ["engine.replicas=1", "engine.min_replicas=1"])

    async def scenario(pool: EnginePool, servers: FakeServers) -> None:
        await pool.add()
        servers.without_room.add(0)
        servers.started[0].over.set()
        while len(pool.statuses()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    note = changed(scenario, recipe)[-1]
    assert "engine-0 cannot be started" in note
    assert note.endswith("No space left on device\nThe run goes on; it has 1 engine")
