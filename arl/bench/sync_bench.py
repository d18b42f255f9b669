"""Measure how fast each transport brings new weights to an engine, beside a plain copy: `arl bench sync`.

    one trainer rank for each transport ─► step ─► publish ─► one engine server loads from all of them, in turn
    one trainer rank that broadcasts    ─► step ─► publish ─► 1, 2 and 4 servers: in one group, a group each, in turn

GB/s are of the whole way: from the end of a step until the engine serves the new weights. The pause is the time during
which no token was generated for requests that stay open. Most of it is the pass under way, so an empty pause, without
weights, is measured beside each, and the part that waits for that pass (drain) is told apart. Servers, ranks and
clients are those of a run; `memory` has one process.
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
from msgspec import Struct, structs

from arl import clock
from arl.bench import sglang_version
from arl.config.recipe import Recipe, TinyModel
from arl.engine.base import Engine
from arl.engine.embedded.batching import EmbeddedEngine
from arl.engine.router import Router
from arl.errors import InputError
from arl.launch.address import new_key
from arl.launch.base import Resources
from arl.launch.local import LocalLauncher
from arl.launch.trust import RunTrust
from arl.models.load import load_model
from arl.models.tiny import make_tiny_model
from arl.run.engines import EngineServers
from arl.run.failures import explain_deaths
from arl.run.ranks import open_trainer
from arl.sync.group_sender import GroupSender
from arl.sync.loading import read_weights
from arl.sync.memory_target import MemoryTarget
from arl.sync.publication_target import State
from arl.sync.weight_folders import SHARED_MEMORY
from arl.tasks.running_checksum import CHARACTERS
from arl.train.trainer_client import TrainerClient
from arl.types import (
    Batch,
    GenerateRequest,
    PauseParts,
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
WAYS = ("one group", "a group each")
POLICIES = ("recompute", "keep")
OPEN = 8  # requests; more make each pass longer, and with it what waits for a pass
PROMPT = 2 * tuple(range(len(CHARACTERS)))
TOKENS = 128  # of the shortest answer
GROUP_SIZE = 4  # trajectories of a step
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
    parts: PauseParts

    @property
    def beyond_drain_and_copy(self) -> float:
        return self.pause - self.parts.drain - self.plain_copy


def bench_sync(repeats: int, sizes: Sequence[str], engines: Sequence[int], note: Note) -> dict[str, Any]:
    """Measure medians over `repeats` rounds, after one that warms up; with SGLang where its environment is found.

    Args:
        sizes: of the model; names of SHAPES.
        engines: numbers of servers that one broadcast reaches; none: only the transports to one server are measured.
        note: is called with a line about what is measured next.

    Raises:
        InputError: there is no such size.
    """
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
            measure = functools.partial(_measure, Path(directory), repeats, kinds, engines, note)
            document[f"{size} parameters"] = clock.run(measure)
    return document


async def _measure(
    directory: Path, repeats: int, kinds: Sequence[str], engines: Sequence[int], note: Note
) -> dict[str, Any]:
    state = read_weights(directory / "model")
    megabytes = round(_num_bytes(state) / 1e6, 1)
    found: dict[str, Any] = {"megabytes": megabytes}
    for policy in POLICIES:
        note(f"{megabytes} MB: one process, {policy}")
        found[f"one process, {policy}"] = await _in_one_process(directory, policy, state, repeats)
    for kind in kinds:
        note(f"{megabytes} MB: starting one {kind} server, and a trainer rank for each transport")
        async with _system(directory, kind, CARRIED[kind], 1) as (servers, (url,), ranks):
            stepped = {transport: _steps(rank) for transport, rank in ranks.items()}
            for policy in POLICIES:
                note(f"{megabytes} MB: {kind}, {policy}")
                section = servers.recipe.engine.model_copy(update={"kv_policy": policy})
                recipe = servers.recipe.model_copy(update={"engine": section})
                sender = GroupSender(ranks["broadcast"], recipe.deadlines.swap)
                async with dataclasses.replace(servers, recipe=recipe).connect(url, sender) as engine:
                    found[f"{kind}, {policy}"] = await _swaps(engine, stepped, state, repeats)
        for count in engines:
            note(f"{megabytes} MB: a broadcast to {count} {kind} servers")
            async with _system(directory, kind, ("broadcast",), count) as system:
                found[f"{kind}, {count} engines"] = await _groups(*system, state, repeats)
    return found


async def _groups(
    servers: EngineServers, urls: Sequence[str], ranks: Mapping[str, TrainerClient], state: State, repeats: int
) -> dict[str, Any]:
    """Measure a broadcast to several servers: in one group, and in a group each."""
    trainer = ranks["broadcast"]
    seconds = servers.recipe.deadlines.swap
    stepped = {"broadcast": _steps(trainer)}
    found = {}
    for way in WAYS:
        shared = GroupSender(trainer, seconds)
        async with contextlib.AsyncExitStack() as stack:
            engines = []
            for url in urls:
                sender = GroupSender(trainer, seconds) if way == "a group each" else shared
                engines.append(await stack.enter_async_context(servers.connect(url, sender)))
            router = Router(engines, sender=None if way == "a group each" else shared)
            measured = await _swaps(router, stepped, state, repeats)
            found[way] = measured["broadcast"]
    if len(urls) > 1:
        one, each = (found[way]["swap_ms"] for way in ("one group", "a group each"))
        found["swap in one group to swap in a group each"] = round(one / each, 3)
    return found


async def _in_one_process(directory: Path, policy: str, state: State, repeats: int) -> dict[str, Any]:
    async with EmbeddedEngine(
        load_model(directory / "model", "float32"),
        slots=OPEN,
        stream_interval=4,
        kv_policy=policy,  # type: ignore[arg-type]
    ) as engine:
        published = {"memory": _in_memory(directory, state)}
        return await _swaps(engine, published, state, repeats)


def _num_bytes(state: State) -> int:
    return sum(tensor.nbytes for tensor in state.values())


@contextlib.asynccontextmanager
async def _system(
    directory: Path, kind: str, transports: Sequence[Transport], count: int
) -> AsyncIterator[tuple[EngineServers, list[str], dict[str, TrainerClient]]]:
    """Start `count` servers, and a trainer rank for each transport."""
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
    trust = RunTrust(new_key())
    async with (
        LocalLauncher(directory / "logs", recipe.deadlines.shutdown) as launcher,
        explain_deaths(launcher),
        contextlib.AsyncExitStack() as stack,
    ):
        servers = EngineServers(recipe, versions, [RESOURCES] * count, launcher, trust)
        started = await servers.start_all()
        urls = [await server.ready(recipe.deadlines.startup) for server in started]
        ranks: dict[str, TrainerClient] = {}
        for transport in transports:
            weights = Path(tempfile.mkdtemp(dir=directory))
            opened = open_trainer(recipe, versions, weights, [RESOURCES], launcher, trust, None, transport)
            ranks[transport] = await stack.enter_async_context(opened)
            await ranks[transport].ready()
        yield servers, urls, ranks


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
    trajectories = []
    for _ in range(GROUP_SIZE):
        reward = float(rng.random())
        trajectory = Trajectory(
            token_ids=rng.integers(0, len(CHARACTERS), LENGTH).astype(np.int32),
            behavior_logprobs=np.where(is_sampled, -2.5, 0.0).astype(np.float32),
            policy_versions=np.where(is_sampled, version, -1).astype(np.int32),
            loss_mask=is_sampled,
            prompt_length=LENGTH // 4,
            reward=reward,
            unshaped_reward=reward,
            truncated=False,
        )
        trajectories.append(trajectory)
    group = TrajectoryGroup(
        group_id=0,
        problem=Problem("drawn"),
        trajectories=tuple(trajectories),
        dispatch_version=version,
        dispatch_time=0,
        arrival_version=0,
        arrival_time=0,
    )
    return Batch(version, (group,))


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
    return {transport: _report(_num_bytes(state) / 1e9, idle[transport], loaded[transport]) for transport in published}


def _report(gigabytes: float, idle: list[Swap], loaded: list[Swap]) -> dict[str, Any]:
    """Report one transport: the whole way on an idle engine, the pause under load."""
    publish = statistics.median(swap.publish for swap in idle)
    swap_seconds = statistics.median(swap.swap for swap in idle)
    copy = statistics.median(swap.plain_copy for swap in idle)
    whole_way = publish + swap_seconds
    pause = statistics.median(swap.pause for swap in loaded)
    empty_pause = statistics.median(swap.empty_pause for swap in loaded)
    beyond_drain = statistics.median(swap.beyond_drain_and_copy for swap in loaded)
    return {
        "publish_ms": round(1e3 * publish, 2),
        "swap_ms": round(1e3 * swap_seconds, 2),
        "gigabytes_per_s": round(gigabytes / whole_way, 2),
        "plain_copy_gigabytes_per_s": round(gigabytes / copy, 2),
        "share_of_plain_copy": round(copy / whole_way, 3),
        "pause_under_load_ms": round(1e3 * pause, 1),
        "empty_pause_under_load_ms": round(1e3 * empty_pause, 1),
        "pause_beyond_that_and_the_plain_copy_ms": round(1e3 * (pause - empty_pause - copy), 1),
        "pause_beyond_the_drain_and_the_plain_copy_ms": round(1e3 * beyond_drain, 1),
        "parts_of_the_pause_ms": _median_parts([swap.parts for swap in loaded]),
        "pauses_ms": [round(1e3 * swap.pause, 1) for swap in loaded],
        "empty_pauses_ms": [round(1e3 * swap.empty_pause, 1) for swap in loaded],
    }


def _median_parts(pauses: list[PauseParts]) -> dict[str, float]:
    """Return the median of each part in milliseconds."""
    columns = [structs.asdict(pause) for pause in pauses]
    return {name: round(1e3 * statistics.median(column[name] for column in columns), 1) for name in columns[0]}


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
                parts=report.parts,
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
