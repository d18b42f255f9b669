"""What an added engine gets, and what it does not."""

import asyncio
import errno
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from arl.config.recipe import Recipe
from arl.errors import InputError, RunError
from arl.launch.base import Node, Process, Resources
from arl.launch.trust import RunTrust
from arl.run.engine_pool import EnginePool
from arl.run.engines import EngineServers
from arl.types import StartingVersions


class SlowServers(EngineServers):
    """Start servers that take for ever."""

    async def start(self, i: int) -> Process:
        """See EngineServers."""
        await asyncio.Event().wait()
        raise AssertionError


class ServersOnAFullDisk(EngineServers):
    """Start no server."""

    async def start(self, i: int) -> Process:
        """See EngineServers."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def pool_of(kind: type[EngineServers], tasks: asyncio.TaskGroup) -> EnginePool:
    """Return the pool of a run on a node whose second GPU the trainer has."""
    launcher = SimpleNamespace(nodes=[Node("n0", 8, ("0", "1"))], lost_nodes=())
    servers = kind(
        recipe=Recipe.model_validate({"model": {"path": "m"}, "data": {"path": "d"}}),
        versions=StartingVersions("m", 0, {}),
        resources=[Resources(2, ("0",))],
        launcher=cast(Any, launcher),
        trust=RunTrust("k"),
    )
    return EnginePool(servers, [Resources(2, ("1",))], lambda line: None, None, tasks)


def test_two_commands_at_once_do_not_take_the_same_gpu() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            pool = pool_of(SlowServers, tasks)
            first = asyncio.create_task(pool.add())
            await asyncio.sleep(0)  # it has chosen the only GPU that is free
            with pytest.raises(InputError, match="none has them"):
                await pool.add()
            first.cancel()
            await asyncio.wait({first})

    asyncio.run(main())


def test_an_engine_that_a_full_disk_keeps_from_starting_is_an_answer_and_its_gpu_is_free_again() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            pool = pool_of(ServersOnAFullDisk, tasks)
            for _ in range(2):
                with pytest.raises(RunError, match=r"cannot be started: .*No space left"):
                    await pool.add()

    asyncio.run(main())
