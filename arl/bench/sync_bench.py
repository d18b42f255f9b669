"""Measure how fast each transport brings new weights to an engine, beside a plain copy: `arl bench sync`.

    one trainer rank for each transport ─► step ─► publish ─► one engine server loads from all of them, in turn
    a broadcast in BUCKETS buckets      ─► beside one in a single bucket, which arrives as a whole before it is loaded

GB/s are of the whole way: from the end of a step until the engine serves the new weights. The pause is the time during
which no token was generated for requests that stay open. Most of it is the pass under way, so an empty pause, without
weights, is measured beside each. Servers, ranks and clients are those of a run.
"""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from msgspec import Struct

from arl import clock
from arl.bench import sglang_version
from arl.config.recipe import Recipe, TinyModel
from arl.engine.base import Engine, ReplicaEngine
from arl.errors import InputError
from arl.launch.base import Resources
from arl.launch.local import LocalLauncher
from arl.launch.network import new_key
from arl.launch.run_secrets import RunSecrets
from arl.models.tiny import make_tiny_model
from arl.run.failures import explain_deaths
from arl.run.processes import EngineServers, open_trainer
from arl.sync.buckets import BUCKET_BYTES
from arl.sync.group_sender import GroupSender
from arl.sync.loading import read_weights
from arl.sync.publication_directory import SHARED_MEMORY
from arl.sync.targets import State
from arl.tasks.running_checksum import CHARACTERS
from arl.train.trainer_client import TrainerClient
from arl.types import (
    Batch,
    GenerateRequest,
    Problem,
    SamplingParams,
    StartingVersions,
    Trajectory,
    TrajectoryGroup,
    Transport,
    WeightUpdate,
)

SHAPES = {
    "0.4M": TinyModel(),
    "25M": TinyModel(hidden_size=512, layers=8, heads=8, intermediate_size=1536),
    "135M": TinyModel(hidden_size=768, layers=19, heads=12, intermediate_size=2048),
}
CARRIED: dict[str, tuple[Transport, ...]] = {"embedded": ("file", "broadcast"), "sglang": ("file", "broadcast", "ipc")}
POLICIES = ("recompute", "keep")
OPEN = 8  # requests; more make each pass longer, and with it what waits for a pass
PROMPT = 2 * tuple(range(len(CHARACTERS)))
TOKENS = 128  # of the shortest answer
GROUP_SIZE = 4  # trajectories of a step
BUCKETS = 8  # of a broadcast, as a model of 4 GB has
LENGTH = 128  # tokens of a trajectory, with its prompt
RESOURCES = Resources(threads=1)

Settle = Callable[[], Awaitable[None]]
Note = Callable[[str], None]
Publish = Callable[[], Awaitable[tuple[WeightUpdate, float]]]  # the next version, and the seconds it took


class Swap(Struct, frozen=True):
    """Hold the seconds of one version on its way to the engine."""

    publish: float
    swap: float
    pause: float  # part of the swap
    plain_copy: float
    empty_pause: float  # without weights, just before


def bench_sync(repeats: int, sizes: Sequence[str] | None, note: Note) -> dict[str, Any]:
    """Measure medians over `repeats` rounds, after one that warms up; with SGLang where its environment is found.

    Args:
        sizes: of the model; names of SHAPES, all of them if none is given.
        note: is called with a line about what is measured next.

    Raises:
        InputError: there is no such size.
    """
    sizes = sizes or list(SHAPES)
    unknown = set(sizes) - SHAPES.keys()
    if unknown:
        raise InputError(f"--size {min(unknown)}: choose from {', '.join(SHAPES)}")
    torch.set_num_threads(1)
    found = sglang_version()
    document: dict[str, Any] = {"sglang": found, "open_requests": OPEN, "repeats": repeats}
    kinds = list(CARRIED) if found != "absent" else ["embedded"]
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="arl-bench-", dir=SHARED_MEMORY) as directory:
            make_tiny_model(SHAPES[size], CHARACTERS, 0, Path(directory) / "model")
            measure = functools.partial(_measure, Path(directory), repeats, kinds, note)
            document[f"{size} parameters"] = clock.run(measure)
    return document


async def _measure(directory: Path, repeats: int, kinds: Sequence[str], note: Note) -> dict[str, Any]:
    state = read_weights(directory / "model")
    num_bytes = _num_bytes(state)
    megabytes = round(num_bytes / 1e6, 1)
    found: dict[str, Any] = {"megabytes": megabytes}
    for kind in kinds:
        note(f"{megabytes} MB: starting one {kind} server, and a trainer rank for each transport")
        async with _system(directory, kind, CARRIED[kind]) as (servers, url, ranks):
            stepped = {transport: _steps(rank) for transport, rank in ranks.items()}
            for policy in POLICIES:
                note(f"{megabytes} MB: {kind}, {policy}")
                section = servers.recipe.engine.model_copy(update={"kv_policy": policy})
                recipe = servers.recipe.model_copy(update={"engine": section})
                sender = GroupSender(ranks["broadcast"])
                async with dataclasses.replace(servers, recipe=recipe).connect(url, sender) as engine:
                    found[f"{kind}, {policy}"] = await _swaps(engine, stepped, state, repeats)
        note(f"{megabytes} MB: {kind}, {BUCKETS} buckets beside one")
        found[f"{kind}, overlap"] = await _overlap(directory, kind, num_bytes, repeats)
    return found


async def _overlap(directory: Path, kind: str, num_bytes: int, repeats: int) -> dict[str, Any]:
    """Swap in several buckets and in one, in turn, on an idle engine of each; return the milliseconds of the swaps."""
    seconds: dict[int, list[float]] = {}
    async with contextlib.AsyncExitStack() as stack:
        engines: dict[int, tuple[ReplicaEngine, Publish]] = {}
        for count in (BUCKETS, 1):
            opened = _system(directory, kind, ["broadcast"], -(-num_bytes // count))
            servers, url, ranks = await stack.enter_async_context(opened)
            engine = await stack.enter_async_context(servers.connect(url, GroupSender(ranks["broadcast"])))
            engines[count] = engine, _steps(ranks["broadcast"])
            seconds[count] = []
        for number in range(repeats + 1):
            for count, (engine, publish) in engines.items():
                update, _ = await publish()
                report = await engine.update_weights(update)
                if number > 0:  # the first joins the group
                    seconds[count].append(report.seconds)
    several, whole = (statistics.median(measured) for measured in seconds.values())
    return {
        "buckets": BUCKETS,
        "swap_ms": round(1e3 * several, 1),
        "swap_in_one_bucket_ms": round(1e3 * whole, 1),
        "ratio": round(several / whole, 3),
    }


def _num_bytes(state: State) -> int:
    return sum(tensor.nbytes for tensor in state.values())


@contextlib.asynccontextmanager
async def _system(
    directory: Path, kind: str, transports: Sequence[Transport], bucket_bytes: int = BUCKET_BYTES
) -> AsyncIterator[tuple[EngineServers, str, dict[str, TrainerClient]]]:
    """Start a server, and a trainer rank for each transport."""
    recipe = Recipe.model_validate(
        {
            "model": {"path": str(directory / "model")},
            "data": {"task": "running_checksum"},
            "rollout": {"staleness": 0},
            "train": {"minibatches": 1, "dtype": "float32"},
            "engine": {"kind": kind, "slots": OPEN, "stream_interval": 4, "dtype": "float32"},
            "deadlines": {"startup": 300},
        }
    )
    versions = StartingVersions(str(directory / "model"))
    trust = RunSecrets(new_key())
    async with (
        LocalLauncher(Path(tempfile.mkdtemp(prefix="logs-", dir=directory)), recipe.deadlines.shutdown) as launcher,
        explain_deaths(launcher),
        contextlib.AsyncExitStack() as stack,
    ):
        servers = EngineServers(recipe, versions, {0: RESOURCES}, launcher, trust)
        server = await servers.start(0)
        url = await server.ready(recipe.deadlines.startup)
        ranks: dict[str, TrainerClient] = {}
        for transport in transports:
            weights = Path(tempfile.mkdtemp(dir=directory))
            opened = open_trainer(
                recipe, versions, weights, [RESOURCES], launcher, trust, None, transport, bucket_bytes
            )
            ranks[transport] = await stack.enter_async_context(opened)
            await ranks[transport].ready()
        yield servers, url, ranks


def _steps(rank: TrainerClient) -> Publish:
    versions = itertools.count()

    async def publish() -> tuple[WeightUpdate, float]:
        result = await rank.step(_batch_of(next(versions)))
        stepped = perf_counter()
        return await rank.weights(result.version), perf_counter() - stepped

    return publish


def _batch_of(version: int) -> Batch:
    """Make a batch of random tokens, the same ones every time, all sampled by `version`."""
    rng = np.random.default_rng(0)
    is_sampled = np.arange(LENGTH) >= LENGTH // 4
    trajectories = [
        Trajectory(
            token_ids=rng.integers(0, len(CHARACTERS), LENGTH).astype(np.int32),
            behavior_logprobs=np.where(is_sampled, -2.5, 0.0).astype(np.float32),
            policy_versions=np.where(is_sampled, version, -1).astype(np.int32),
            loss_mask=is_sampled,
            prompt_length=LENGTH // 4,
            reward=reward,
            unshaped_reward=reward,
            truncated=False,
        )
        for reward in range(GROUP_SIZE)
    ]
    return Batch(version, (TrajectoryGroup(0, Problem("drawn"), tuple(trajectories), version, 0.0, version, 0.0),))


async def _swaps(engine: Engine, published: Mapping[str, Publish], state: State, repeats: int) -> dict[str, Any]:
    """Measure each transport in turn: first on an idle engine, then with open requests."""
    idle = await _rounds(engine, published, state, repeats, _at_once)
    async with _load(engine) as settle:
        loaded = await _rounds(engine, published, state, repeats, settle)
    return {transport: _report(_num_bytes(state) / 1e9, idle[transport], loaded[transport]) for transport in published}


def _report(gigabytes: float, idle: list[Swap], loaded: list[Swap]) -> dict[str, Any]:
    """Report one transport: the whole way on an idle engine, the pause under load."""
    publish, swap, copy = (_median(idle, part) for part in ("publish", "swap", "plain_copy"))
    pause, empty_pause = (_median(loaded, part) for part in ("pause", "empty_pause"))
    return {
        "publish_ms": round(1e3 * publish, 2),
        "swap_ms": round(1e3 * swap, 2),
        "gigabytes_per_s": round(gigabytes / (publish + swap), 2),
        "plain_copy_gigabytes_per_s": round(gigabytes / copy, 2),
        "share_of_plain_copy": round(copy / (publish + swap), 3),
        "pause_under_load_ms": round(1e3 * pause, 1),
        "empty_pause_under_load_ms": round(1e3 * empty_pause, 1),
        "pause_beyond_that_and_the_plain_copy_ms": round(1e3 * (pause - empty_pause - copy), 1),
        "pauses_ms": [round(1e3 * swap.pause, 1) for swap in loaded],
        "empty_pauses_ms": [round(1e3 * swap.empty_pause, 1) for swap in loaded],
    }


def _median(swaps: list[Swap], part: str) -> float:
    return float(statistics.median(getattr(swap, part) for swap in swaps))


async def _rounds(
    engine: Engine, published: Mapping[str, Publish], state: State, repeats: int, settle: Settle
) -> dict[str, list[Swap]]:
    """Swap weights by each transport in turn, `repeats` times after a round that warms up."""
    rounds: dict[str, list[Swap]] = {transport: [] for transport in published}
    target = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    for number in range(repeats + 1):
        for transport, publish in published.items():
            update, publish_seconds = await publish()
            await settle()
            empty_pause = await _pause(engine)
            await settle()
            plain_copy = _copy(state, target)
            report = await engine.update_weights(update)
            swap = Swap(
                publish=publish_seconds,
                swap=report.seconds,
                pause=report.pause_seconds,
                plain_copy=plain_copy,
                empty_pause=empty_pause,
            )
            if number > 0:
                rounds[transport].append(swap)
    return rounds


async def _pause(engine: Engine) -> float:
    """Pause without loading anything; return the seconds until generation goes on."""
    start = perf_counter()
    await engine.pause()
    await engine.resume()
    return perf_counter() - start


def _copy(state: State, target: State) -> float:
    """Copy all weights within this process, and return the seconds."""
    start = perf_counter()
    for name, tensor in state.items():
        target[name].copy_(tensor)
    return perf_counter() - start


async def _at_once() -> None:
    """Return at once, because no request is open."""


@contextlib.asynccontextmanager
async def _load(engine: Engine) -> AsyncIterator[Settle]:
    """Keep OPEN requests open; yield a function that waits until each of them has got a token again."""
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
