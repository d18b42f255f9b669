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
