"""Provide two tiny models, each engine (in process, as a server, SGLang), and stock transformers to compare with.

SGLang runs where arl.engine.sglang.sglang_backend finds its interpreter; elsewhere its tests are not run.
"""

import asyncio
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from arl.config.capabilities import KvPolicy
from arl.config.recipe import Recipe, TinyModel
from arl.engine.backend import ServerSpec, find_backend
from arl.engine.base import Engine
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.http.engine_client import HttpEngine
from arl.launch.base import Resources
from arl.launch.network import LOOPBACK
from arl.launch.spawn import RUNNER
from arl.models.load import load_model
from arl.models.tiny import make_tiny_model
from arl.sync.ipc import IpcTarget
from arl.sync.loading import read_weights
from arl.sync.targets import MemoryTarget
from arl.tasks.running_checksum import CHARACTERS
from arl.types import Completion, GenerateRequest, SamplingParams, StartingVersions, Transport, WeightUpdate
from tests.forks import Fork, pipe
from tests.sync.sender import ThreadSender
from tests.sync.sender import publish as publish_in

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
T = TypeVar("T")
KEY = "a run key"
VOCAB = len(CHARACTERS) + 3
EOS = VOCAB - 1
SHAPE = TinyModel(intermediate_size=380)  # a width that SGLang pads on a CPU
CONTEXT = SHAPE.context
# Tokens of a request that sees a swap: it ends before position 256. On one machine SGLang and the stock model differed
# by up to 4e-3 beyond it, in each of these tests, and by 1e-6 before it; the cause is not known.
SWAPPED_TOKENS = 235


class Weights:
    """Hold a model on disk, and stock transformers' float32 view of it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.stock: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)

    def logprobs(self, prompt: tuple[int, ...], response: tuple[int, ...], temperature: float = 1.0) -> np.ndarray:
        """Return the logprob of each response token by one full forward pass: (len(response),) float32."""
        with torch.no_grad():
            logits = self.stock(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits / temperature, -1)
        return np.asarray(logprobs.gather(1, torch.tensor(response)[:, None])[:, 0])


def _make(directory: Path, seed: int) -> Weights:
    """Make random weights, enlarged so that attention matters to what is sampled."""
    make_tiny_model(SHAPE, CHARACTERS, seed, directory)
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
    process: subprocess.Popen[str] | Fork
    reader: threading.Thread  # of its output, until nobody holds it open

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=120)


def start(argv: list[str], env: dict[str, str], log: Path) -> ServerProcess:
    """Start a server and wait until it is ready; the caller ends it."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*RUNNER, *argv], stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | env | secrets()
        )
    assert process.stdout is not None
    return _ready(process, process.stdout, log)


def secrets() -> dict[str, str]:
    return {"ARL_RUN_KEY": KEY, "ARL_PARENT_PID": str(os.getpid())}


def _ready(process: "subprocess.Popen[str] | Fork", output: IO[str], log: Path) -> ServerProcess:
    url = next((line[6:].strip() for line in output if line.startswith("ready ")), None)
    assert url is not None, f"it ended with {process.wait(timeout=120)}: {log.read_text()[-2000:]}"
    reader = threading.Thread(target=output.read, daemon=True)
    reader.start()
    return ServerProcess(url, process, reader)


def start_server(model: str, log: Path, broadcast_seconds: float = 30.0) -> ServerProcess:
    """Start a server of the embedded engine."""
    module, arguments = "arl.engine.embedded.server", ["--model", model, "--port", "0"]
    arguments += ["--threads", "1", "--slots", "16", "--stream-interval", "4"]
    arguments += ["--broadcast-seconds", str(broadcast_seconds)]
    output, its_output = pipe()
    process = Fork(module, arguments, os.environ | secrets(), output=its_output, errors=log)
    return _ready(process, output, log)


def sglang_spec(model: str, resources: Resources, host: str = LOOPBACK, **engine: object) -> ServerSpec:
    """Describe an SGLang server with the settings `engine`."""
    given = {"model": {"path": model}, "data": {"task": "running_checksum"}, "engine": {"kind": "sglang", **engine}}
    recipe = Recipe.model_validate(given)
    versions = StartingVersions(model)
    return ServerSpec(recipe=recipe, versions=versions, resources=resources, seed=0, host=host)


def sglang_command(python: str, model: str) -> tuple[list[str], dict[str, str]]:
    """Return argv and environment of an SGLang server on one CPU thread."""
    server = sglang_spec(model, Resources(1), python=python, slots=16, stream_interval=4, dtype="float32")
    command = find_backend("sglang").command(server)
    return list(command.argv), dict(command.environment)


def start_sglang(python: str, model: str, log: Path) -> ServerProcess:
    """Start an SGLang server, whose temporary files lie beside its log."""
    argv, env = sglang_command(python, model)
    return start(argv, env | {"TMPDIR": str(log.parent)}, log)


@pytest.fixture(scope="session")
def server(old: Weights, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Start one server for all tests; at the end it must exit within its deadline."""
    running = start_server(old.path, tmp_path_factory.mktemp("server") / "log")
    yield running
    assert running.end() == 0


@pytest.fixture(scope="session")
def sglang_server(
    sglang_python: str, old: Weights, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Start one for all tests, because each takes half a minute. At the end nothing of it may be left."""
    home = tmp_path_factory.mktemp("sglang")
    running = start_sglang(sglang_python, old.path, home / "log")
    (place,) = home.glob("arl-sglang-*")
    assert semaphores_of(place)
    yield running
    running.end()
    running.reader.join(timeout=120)
    assert not place.exists()
    assert not semaphores_of(place)


def semaphores_of(place: Path) -> list[Path]:
    """Return the semaphores of the SGLang server whose temporary files lie in `place`."""
    return list(Path("/dev/shm").glob(f"sem.{place.name}-*"))


def connect(url: str, kv_policy: KvPolicy = "recompute", **more: Any) -> HttpEngine:
    options = {"generate_seconds": 30.0, "swap_seconds": 10.0} | more
    return HttpEngine(url, kv_policy=kv_policy, key=KEY, vocab_size=VOCAB, context=CONTEXT, **options)


REAL = pytest.param("sglang", marks=pytest.mark.sglang)


Opened = Callable[..., AbstractAsyncContextManager[Engine]]


@pytest.fixture(params=["embedded", "server", REAL])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def repeatable(kind: str) -> dict[str, Any]:
    """Return sampling whose answers repeat: any on ours; greedy on SGLang, whose samples obey no seed."""
    return {"top_k": 1} if kind == "sglang" else {}


@pytest.fixture(scope="session")
def sender(old: Weights) -> ThreadSender:
    return ThreadSender(old.path)


CARRIED = [
    *(("embedded", "file"), ("embedded", "memory"), ("server", "file"), ("server", "broadcast")),
    *(pytest.param("sglang", transport, marks=pytest.mark.sglang) for transport in ("file", "broadcast", "ipc")),
]


Publish = Callable[[Transport, int, str], WeightUpdate]


@pytest.fixture
def publish(sender: ThreadSender, tmp_path: Path) -> Publish:
    """Return what publishes the weights of a directory in many buckets, so that engines can load them."""
    (tmp_path / "ipc").mkdir()
    memory = MemoryTarget(tmp_path, "{}")
    ipc = IpcTarget(tmp_path / "ipc", 100_000)

    def published(transport: Transport, version: int, model: str) -> WeightUpdate:
        if transport == "file":
            return WeightUpdate(version, model)
        if transport == "broadcast":
            return sender.publish(version, model)
        if transport == "memory":
            return memory.write(version, read_weights(model))
        return publish_in(ipc, 100_000, version, read_weights(model))

    return published


@pytest.fixture
def opened(request: pytest.FixtureRequest, kind: str, old: Weights, sender: ThreadSender) -> Opened:
    """Return a context that opens the engine of `kind` with the old weights loaded."""

    @asynccontextmanager
    async def embedded(kv_policy: KvPolicy = "recompute", **_: bool) -> AsyncIterator[Engine]:
        model = load_model(old.path, "float32")
        async with EmbeddedEngine(model, slots=16, kv_policy=kv_policy, stream_interval=4) as engine:
            yield engine

    @asynccontextmanager
    async def served(kv_policy: KvPolicy = "recompute", **more: bool) -> AsyncIterator[Engine]:
        async with connect(url, kv_policy, sender=sender.shared, **more) as engine:
            await engine.update_weights(WeightUpdate(engine.loaded_version + 1, old.path))
            yield engine

    if kind == "embedded":
        return embedded
    url = request.getfixturevalue("server" if kind == "server" else "sglang_server").url
    return served


def ask(
    name: str, prompt: tuple[int, ...] = (1, 2, 3), tokens: int = 20, seed: int = 0, **sampling: object
) -> GenerateRequest:
    params = SamplingParams(tokens, seed=seed, **sampling)  # type: ignore[arg-type]
    return GenerateRequest(name, prompt, params)


async def complete(engine: Engine, request: GenerateRequest) -> Completion:
    """Generate one request, and join its increments."""
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()
    async for increment in engine.generate(request):
        ids += increment.token_ids
        logprobs += increment.logprobs
        versions += increment.policy_versions
    assert increment.finish_reason is not None
    return Completion(ids, logprobs, versions, increment.finish_reason)


def within(scenario: Callable[[], Awaitable[T]], seconds: float = 600.0) -> T:
    """Run a scenario on a loop of its own; a hang is a failure."""

    async def main() -> T:
        async with asyncio.timeout(seconds):
            return await scenario()

    return asyncio.run(main())
