"""Measure how fast each transport brings new weights to an engine, beside a plain copy of the same bytes.

    one trainer rank for each transport ─► step ─► publish ─► one engine server loads from all of them, in turn

GB/s are of the whole way: from the end of a step until the engine serves the new weights. The pause is the time during
which no token was generated for 32 requests that stay open. Most of it is the pass under way, so an empty pause,
without weights, is measured beside each. Servers, ranks and clients are those of a run; `memory` has one process.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from arl import clock
from arl.bench import sglang_version
from arl.bench.checkpoint_bench import SHAPE, batch_of
from arl.config.recipe import Recipe, TinyModel
from arl.engine.base import Engine
from arl.engine.embedded.batching import EmbeddedEngine
from arl.launch.address import new_key
from arl.launch.base import Resources
from arl.launch.local import LocalLauncher
from arl.models.load import load_model
from arl.models.tiny import make_tiny_model
from arl.run.engines import EngineServers
from arl.run.failures import explain_deaths
from arl.run.ranks import open_trainer
from arl.sync.loading import read_weights
from arl.sync.memory_target import MemoryTarget
from arl.sync.publication_directory import SHARED_MEMORY
from arl.sync.publication_target import State
from arl.tasks.running_checksum import CHARACTERS
from arl.train.trainer_client import TrainerClient
from arl.types import GenerateRequest, SamplingParams, StartingVersions, WeightUpdate

SHAPES = {"0.4M parameters": TinyModel(), "25M parameters": SHAPE}
CARRIED = {"embedded": ("file", "broadcast"), "sglang": ("file", "broadcast", "ipc")}
POLICIES = ("recompute", "keep")
OPEN = 32  # requests
PROMPT = 2 * tuple(range(len(CHARACTERS)))
TOKENS = 128  # of the shortest answer
RESOURCES = Resources(threads=1)

Settle = Callable[[], Awaitable[None]]
Publish = Callable[[], Awaitable[tuple[WeightUpdate, float]]]  # the next version, and the seconds it took


def bench_sync(repeats: int) -> dict[str, Any]:
    """Measure medians over `repeats` rounds, after one that warms up; with SGLang where its environment is found."""
    torch.set_num_threads(1)
    found = sglang_version()
    document: dict[str, Any] = {"sglang": found, "open_requests": OPEN, "repeats": repeats}
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory(prefix="arl-bench-", dir=SHARED_MEMORY) as directory:
            make_tiny_model(shape, CHARACTERS, 0, Path(directory) / "model")
            document[name] = clock.run(lambda here=Path(directory): _measure(here, repeats, found != "absent"))  # type: ignore[misc]
    return document


async def _measure(directory: Path, repeats: int, has_sglang: bool) -> dict[str, Any]:
    state = read_weights(directory / "model")
    found: dict[str, Any] = {"megabytes": round(sum(t.nbytes for t in state.values()) / 1e6, 1)}
    for policy in POLICIES:
        async with EmbeddedEngine(
            load_model(directory / "model", "float32"),
            slots=OPEN,
            stream_interval=4,
            kv_policy=policy,  # type: ignore[arg-type]
        ) as engine:
            found[f"one process, {policy}"] = await _swaps(
                engine, {"memory": _in_memory(directory, state)}, state, repeats
            )
    for kind in CARRIED if has_sglang else ("embedded",):
        async with _system(directory, kind) as (servers, url, ranks):
            stepped = {transport: _steps(rank) for transport, rank in ranks.items()}
            for policy in POLICIES:
                section = servers.recipe.engine.model_copy(update={"kv_policy": policy})
                recipe = servers.recipe.model_copy(update={"engine": section})
                connection = dataclasses.replace(servers, recipe=recipe).connect(url, ranks["broadcast"])
                async with connection as engine:
                    found[f"{kind}, {policy}"] = await _swaps(engine, stepped, state, repeats)
    return found


@contextlib.asynccontextmanager
async def _system(directory: Path, kind: str) -> AsyncIterator[tuple[EngineServers, str, dict[str, TrainerClient]]]:
    """Start one server, and a trainer rank for each transport that the server can take."""
    recipe = Recipe.model_validate(
        {
            "model": {"path": str(directory / "model")},
            "data": {"task": "running_checksum"},
            "rollout": {"staleness": 0},
            "train": {"minibatches": 1},
            "engine": {"kind": kind, "slots": OPEN, "stream_interval": 4},
            "deadlines": {"startup": 300},
        }
    )
    versions, key = StartingVersions(str(directory / "model")), new_key()
    async with (
        LocalLauncher(directory / "logs", recipe.deadlines.shutdown) as launcher,
        explain_deaths(launcher),
        contextlib.AsyncExitStack() as stack,
    ):
        servers = EngineServers(recipe, versions, [RESOURCES], launcher, key)
        url = await (await servers.start(0)).ready(recipe.deadlines.startup)
        ranks = {}
        for transport in CARRIED[kind]:
            weights = directory / kind / transport
            weights.mkdir(parents=True)
            opened = open_trainer(recipe, versions, weights, [RESOURCES], launcher, key, None, transport)  # type: ignore[arg-type]
            ranks[transport] = await stack.enter_async_context(opened)
            await ranks[transport].ready()
        yield servers, url, ranks


def _steps(rank: TrainerClient) -> Publish:
    versions = itertools.count()

    async def publish() -> tuple[WeightUpdate, float]:
        result = await rank.step(batch_of(next(versions), groups=1))
        stepped = perf_counter()
        return await rank.weights(result.version), perf_counter() - stepped

    return publish


def _in_memory(directory: Path, state: State) -> Publish:
    target = MemoryTarget(directory, "{}")
    versions = itertools.count(1)

    async def publish() -> tuple[WeightUpdate, float]:
        return target.write(next(versions), state), 0.0

    return publish


async def _swaps(engine: Engine, published: Mapping[str, Publish], state: State, repeats: int) -> dict[str, Any]:
    """Measure each transport in turn: first on an idle engine, then with open requests."""
    idle = await _rounds(engine, published, state, repeats, _at_once)
    async with _load(engine) as settle:
        loaded = await _rounds(engine, published, state, repeats, settle)
    size = sum(tensor.nbytes for tensor in state.values()) / 1e9
    report: dict[str, Any] = {}
    for transport in published:
        publish, swap, _, copy, _ = _medians(idle[transport])
        _, _, pause, _, empty = _medians(loaded[transport])
        report[transport] = {
            "publish_ms": round(1e3 * publish, 2),
            "swap_ms": round(1e3 * swap, 2),
            "gigabytes_per_s": round(size / (publish + swap), 2),
            "plain_copy_gigabytes_per_s": round(size / copy, 2),
            "share_of_plain_copy": round(copy / (publish + swap), 3),
            "pause_under_load_ms": round(1e3 * pause, 1),
            "empty_pause_under_load_ms": round(1e3 * empty, 1),
            "pause_beyond_that_and_the_plain_copy_ms": round(1e3 * (pause - empty - copy), 1),
            "pauses_ms": [round(1e3 * row[2], 1) for row in loaded[transport]],
            "empty_pauses_ms": [round(1e3 * row[4], 1) for row in loaded[transport]],
        }
    return report


def _medians(rows: list[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(statistics.median(column) for column in zip(*rows, strict=True))


async def _rounds(
    engine: Engine, published: Mapping[str, Publish], state: State, repeats: int, settle: Settle
) -> dict[str, list[tuple[float, ...]]]:
    """Return the seconds of each round: publication, swap, its pause, a plain copy and an empty pause just before."""
    rows: dict[str, list[tuple[float, ...]]] = {transport: [] for transport in published}
    target = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    for number in range(repeats + 1):
        for transport, publish in published.items():
            update, seconds = await publish()
            await settle()
            begun = perf_counter()
            await engine.pause()
            await engine.resume()
            empty = perf_counter() - begun
            await settle()
            start = perf_counter()
            for name, tensor in state.items():
                target[name].copy_(tensor)
            copied = perf_counter()
            report = await engine.update_weights(update)
            if number:
                rows[transport].append((seconds, report.seconds, report.pause_seconds, copied - start, empty))
    return rows


async def _at_once() -> None:
    """Return at once, because no request is open."""


@contextlib.asynccontextmanager
async def _load(engine: Engine) -> AsyncIterator[Settle]:
    """Keep 32 requests open; yields a function that waits until each of them has got a token again."""
    got_token = [asyncio.Event() for _ in range(OPEN)]

    async def keep_open(slot: int) -> None:
        for number in itertools.count():
            sampling = SamplingParams(TOKENS + 2 * slot, seed=slot)
            async for _ in engine.generate(GenerateRequest(f"{slot}-{number}", PROMPT, sampling)):
                got_token[slot].set()

    async def settle() -> None:
        for event in got_token:
            event.clear()
        for event in got_token:
            await event.wait()

    async with asyncio.TaskGroup() as tasks:
        requests = [tasks.create_task(keep_open(slot)) for slot in range(OPEN)]
        yield settle
        for request in requests:
            request.cancel()
