"""Check what callers of the weight routes may do at the same time, also those that go away before they are answered."""

import asyncio
import threading
from typing import Any

import aiohttp
import pytest
import torch
from transformers import PreTrainedModel

from arl.engine.embedded import batching
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.embedded.routes import EngineRoutes
from arl.models.load import load_model
from arl.sync.loading import read_weights
from arl.types import WeightUpdate
from tests.engine.conftest import Weights, within
from tests.engine.served import served

SECONDS = 30.0


async def post(client: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, str]:
    async with client.post(path, json=body) as answer:
        return answer.status, await answer.text()


class HeldReads:
    """Take the place of read_weights: each read waits until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.begun = asyncio.Event()
        self.held = 0
        self._loop = asyncio.get_running_loop()

    def __call__(self, path: str, model: PreTrainedModel) -> dict[str, torch.Tensor]:
        self.held += 1
        assert self.held == 1, "one model is read at a time"
        self._loop.call_soon_threadsafe(self.begun.set)
        assert self.let_go.wait(SECONDS)
        self.held -= 1
        return read_weights(path, model)


def test_a_model_is_read_only_after_the_one_of_a_caller_that_has_gone(
    old: Weights, new: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        reads = HeldReads()
        monkeypatch.setattr(batching, "read_weights", reads)
        async with EmbeddedEngine(load_model(old.path, "float32"), slots=2) as engine:
            try:
                async with served(EngineRoutes(engine, old.path, (), SECONDS)) as client:
                    path = "/update_weights_from_disk"
                    gone = asyncio.create_task(post(client, path, {"model_path": old.path, "weight_version": "1"}))
                    await reads.begun.wait()
                    gone.cancel()
                    last = {"model_path": new.path, "weight_version": "2"}
                    asking = asyncio.create_task(post(client, path, last))
                    await asyncio.wait([gone])
                    reads.let_go.set()
                    assert (await asking)[0] == 200
            finally:
                reads.let_go.set()
            assert engine.loaded_version == 2

    within(scenario, SECONDS)


class ObservedEngine(EmbeddedEngine):
    """Record what is done with its weights, and hold up the checker until it is let go."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, slots=2)
        self.done: list[str] = []
        self.checking = asyncio.Event()
        self.asked = asyncio.Event()
        self.let_go = threading.Event()
        self._loop = asyncio.get_running_loop()

    def checksums(self) -> dict[str, str]:
        self._loop.call_soon_threadsafe(self.checking.set)
        assert self.let_go.wait(SECONDS)
        found = super().checksums()
        self.done.append("checked")
        return found

    async def load(self, update: WeightUpdate) -> None:
        self.done.append("loaded")
        await super().load(update)

    @property
    def num_open(self) -> int:
        """Notice that what flushes is about to load."""
        self.asked.set()
        return super().num_open


def test_broadcast_weights_are_not_loaded_while_the_checker_reads_the_old_ones(old: Weights) -> None:
    async def scenario() -> None:
        async with ObservedEngine(load_model(old.path, "float32")) as engine:
            try:
                async with served(EngineRoutes(engine, old.path, (), SECONDS)) as client:
                    checking = asyncio.create_task(post(client, "/weights_checker", {"action": "checksum"}))
                    await engine.checking.wait()
                    empty: dict[str, Any] = {"names": [], "dtypes": [], "shapes": [], "group_name": "none"}
                    body = {**empty, "weight_version": "1", "flush_cache": True}
                    loading = asyncio.create_task(post(client, "/update_weights_from_distributed", body))
                    await engine.asked.wait()
                    engine.let_go.set()
                    assert (await checking)[0] == 200
                    assert (await loading)[0] == 400, "nothing was broadcast"
            finally:
                engine.let_go.set()
            assert engine.done == ["checked", "loaded"]

    within(scenario, SECONDS)
