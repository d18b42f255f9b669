"""Two tiny models, the engine in process and as a server process, and stock transformers to compare with."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from arl.data.checksum import CHARACTERS
from arl.engine.base import Engine
from arl.engine.client import SGLangEngine
from arl.engine.embedded import EmbeddedEngine
from arl.models.load import load_model
from arl.models.tiny import make_tiny_model
from arl.recipe import TinyModel
from arl.types import Completion, GenerateRequest, SamplingParams, WeightUpdate

T = TypeVar("T")
KvPolicy = Literal["recompute", "keep"]
torch.set_num_threads(1)  # two cores, shared with the server process
KEY = "a run key"
VOCAB = len(CHARACTERS) + 3
EOS = VOCAB - 1
CONTEXT = TinyModel().context


class Weights:
    """A model on disk, and stock transformers' float32 view of it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.stock: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def logprobs(self, prompt: tuple[int, ...], response: tuple[int, ...], temperature: float = 1.0) -> np.ndarray:
        """Of each response token, by one full forward pass: (len(response),) float32."""
        with torch.no_grad():
            logits = self.stock(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits / temperature, -1)
        return np.asarray(logprobs.gather(1, torch.tensor(response)[:, None])[:, 0])


def _make(directory: Path, seed: int) -> Weights:
    """Random weights, enlarged so that attention matters to what is sampled."""
    make_tiny_model(TinyModel(), CHARACTERS, seed, directory)
    file = directory / "model.safetensors"
    state = {k: v * 4 if v.ndim == 2 else v for k, v in load_file(file).items()}
    save_file(state, file, metadata={"format": "pt"})
    return Weights(directory)


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return _make(tmp_path_factory.mktemp("old"), 0)


@pytest.fixture(scope="session")
def new(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return _make(tmp_path_factory.mktemp("new"), 1)


@dataclass
class ServerProcess:
    url: str
    process: subprocess.Popen[str]


def start_server(model: str) -> ServerProcess:
    """A server of its own, ready; the caller ends it."""
    command = [sys.executable, "-m", "arl.engine.server", "--model", model, "--port", "0"]
    options = ["--threads", "1", "--slots", "16", "--stream-interval", "4"]
    env = {**os.environ, "ARL_RUN_KEY": KEY, "ARL_PARENT_PID": str(os.getpid())}
    process = subprocess.Popen(command + options, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
    assert process.stdout is not None
    word, _, url = process.stdout.readline().strip().partition(" ")
    assert word == "ready"
    return ServerProcess(url, process)


@pytest.fixture(scope="session")
def server(old: Weights) -> Iterator[ServerProcess]:
    """One server for all tests; ends within its deadline when asked to."""
    running = start_server(old.path)
    yield running
    running.process.terminate()
    assert running.process.wait(timeout=10) == 0


@pytest.fixture(scope="session")
def doomed(old: Weights) -> Iterator[ServerProcess]:
    """A second server, for the test that kills it."""
    running = start_server(old.path)
    yield running
    running.process.kill()
    running.process.wait(timeout=10)


def connect(url: str, kv_policy: KvPolicy = "recompute", generate_seconds: float = 30.0) -> SGLangEngine:
    return SGLangEngine(url, generate_seconds=generate_seconds, swap_seconds=10.0, kv_policy=kv_policy, key=KEY)


class Opened(Protocol):
    def __call__(self, kv_policy: KvPolicy = "recompute") -> AbstractAsyncContextManager[Engine]: ...


@pytest.fixture(params=["embedded", "server"])
def opened(request: pytest.FixtureRequest, old: Weights) -> Opened:
    """Either engine, always with the old weights loaded."""

    @asynccontextmanager
    async def embedded(kv_policy: KvPolicy = "recompute") -> AsyncIterator[Engine]:
        model = load_model(old.path, "float32")
        async with EmbeddedEngine(model, slots=16, kv_policy=kv_policy, stream_interval=4) as engine:
            yield engine

    @asynccontextmanager
    async def served(kv_policy: KvPolicy = "recompute") -> AsyncIterator[Engine]:
        async with connect(request.getfixturevalue("server").url, kv_policy) as engine:
            await engine.update_weights(WeightUpdate(engine.loaded_version + 1, old.path))
            yield engine

    if request.param == "server":
        request.getfixturevalue("server")  # started outside of any event loop
    return embedded if request.param == "embedded" else served


def ask(
    name: str, prompt: tuple[int, ...] = (1, 2, 3), tokens: int = 20, seed: int = 0, **sampling: object
) -> GenerateRequest:
    params = SamplingParams(tokens, seed=seed, **sampling)  # type: ignore[arg-type]
    return GenerateRequest(name, prompt, params)


async def complete(engine: Engine, request: GenerateRequest) -> Completion:
    """All increments of one request joined."""
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    async for increment in engine.generate(request):
        ids += increment.token_ids
        logprobs += increment.logprobs
        versions += increment.policy_versions
    assert increment.finish_reason is not None
    return Completion(ids, logprobs, versions, increment.finish_reason)


def within(scenario: Callable[[], Awaitable[T]], seconds: float = 60.0) -> T:
    """Run a scenario on a loop of its own; a hang is a failure."""

    async def main() -> T:
        async with asyncio.timeout(seconds):
            return await scenario()

    return asyncio.run(main())
