"""Real SGLang servers in one process group; one of them is killed in mid-broadcast."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import torch

from arl.config.recipe import Deadlines, Recipe
from arl.engine.router import Router
from arl.launch.base import Resources
from arl.launch.trust import RunTrust
from arl.run.engine_pool import connect_engines
from arl.run.engines import EngineServers
from arl.sync.loading import read_weights
from arl.sync.verify import checksums
from arl.types import StartingVersions, WeightUpdate
from tests.engine.conftest import KEY, Weights, ask, complete, within
from tests.engine.test_sglang_recovery import Watched
from tests.processes import survivors
from tests.sync.sender import ThreadSender

LIMITS = Deadlines(startup=600, step=1500, swap=60, generate=60)
# Each kill costs the start of a server, so CI has one. More are a command, and the servers may be more too:
# ARL_TEST_SERVERS=4 ARL_TEST_KILLS=20 pytest -m "slow and sglang" tests/engine/test_sglang_broadcast.py
SERVERS = int(os.environ.get("ARL_TEST_SERVERS", "2"))
KILLS = int(os.environ.get("ARL_TEST_KILLS", "1"))
SECONDS = LIMITS.startup * (1 + KILLS)


class Broadcasts:
    """Servers that a run would keep, and a trainer whose broadcasts kill one of them after the second bucket."""

    def __init__(self, model: str, directory: Path) -> None:
        self.trainer = ThreadSender(model, seconds=LIMITS.swap)
        self.trainer.on_bucket = self._sent
        self.processes = Watched(directory, lambda role: None)
        self.notes: list[str] = []
        self.replaced = asyncio.Event()
        self.killed: list[str] = []
        self.everyone: set[psutil.Process] = set()
        self._model = model
        self._buckets = 0
        self._victim: int | None = None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Router]:
        recipe = Recipe.model_validate(
            {
                "model": {"path": self._model},
                "data": {"task": "running_checksum"},
                "engine": {
                    "kind": "sglang",
                    "replicas": SERVERS,
                    "slots": 8,
                    "dtype": "float32",
                    "max_restarts": KILLS,
                },
                "sync": {"transport": "broadcast"},
                "deadlines": LIMITS.model_dump(),
            }
        )
        versions = StartingVersions(self._model)
        async with self.processes:
            servers = EngineServers(recipe, versions, [Resources(1)] * SERVERS, self.processes, RunTrust(KEY))
            started = await servers.start_all()
            async with connect_engines(servers, started, self._note, self.trainer) as router:
                yield router
                self._note_everyone()

    def kill_during_the_next(self, seat: int) -> None:
        self.replaced.clear()
        self._buckets = 0
        self._victim = seat

    def _note(self, line: str) -> None:
        self.notes.append(line)
        self.replaced.set()

    def _sent(self, group: str) -> None:
        self._buckets += 1
        if self._buckets == 2 and self._victim is not None:
            self._note_everyone()
            process = psutil.Process(self.processes.running[f"engine-{self._victim}"].pid)
            tree = [process, *process.children(recursive=True)]
            next(one for one in tree if one.name().startswith("sglang::schedul")).kill()
            self.killed.append(group)
            self._victim = None

    def _note_everyone(self) -> None:
        for server in self.processes.running.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(server.pid)
                self.everyone |= {process, *process.children(recursive=True)}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_an_sglang_server_killed_in_mid_broadcast_is_replaced_and_the_others_serve_the_version(
    sglang_python: str, old: Weights, new: Weights, tmp_path: Path
) -> None:
    """Checksums of every weight are compared after every load, that of the replacement too."""
    broadcasts = Broadcasts(old.path, tmp_path / "logs")
    expected = {weights.path: checksums(read_weights(weights.path), torch.float32) for weights in (old, new)}

    def publish(version: int, weights: Weights) -> WeightUpdate:
        update = broadcasts.trainer.publish(version, weights.path)
        return msgspec.structs.replace(update, checksums=expected[weights.path])

    async def scenario() -> None:
        async with broadcasts.open() as router:
            await router.update_weights(publish(1, old))
            for number in range(KILLS):
                weights = (new, old)[number % 2]
                version = number + 2
                seat = number % SERVERS
                broadcasts.kill_during_the_next(seat)
                report = await router.update_weights(publish(version, weights))
                assert report.version == router.loaded_version == version
                broken, again = broadcasts.trainer.sent[-2:]
                assert broadcasts.killed[-1] == broken != again, "the survivor got it once more, in a new group"
                after = await complete(router, ask(f"after {number}", tokens=20))
                assert set(after.policy_versions) == {version}
                expected_logprobs = weights.logprobs((1, 2, 3), after.token_ids)
                np.testing.assert_allclose(after.logprobs, expected_logprobs, rtol=0, atol=2e-4)
                await broadcasts.replaced.wait()  # it has loaded the version before it is seated

    within(scenario, SECONDS)
    assert len(broadcasts.killed) == KILLS
    assert len([note for note in broadcasts.notes if "restarted in" in note]) == KILLS
    assert not survivors(broadcasts.everyone)
