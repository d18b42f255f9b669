"""Measure the embedded engine beside SGLang and Hugging Face `generate`, with equal threads: `arl bench engine`.

    1, 8, 32, 128 requests at a time, lognormal lengths ─► the embedded engine's server, over HTTP  ─► tokens/s, latency
                                                        ├► SGLang's server, likewise                ─► tokens/s, latency
                                                        └► generate, here, in batches of so many    ─► tokens/s, latency

All sample from the same random weights of one tiny model, with lengths imposed: in float32 on the CPU, in bfloat16 on
one GPU where there is one. That engines record the trainer's own logprobs is shown by tests/engine/test_agreement.py.
"""

import asyncio
import contextlib
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from transformers import AutoModelForCausalLM, PreTrainedModel

from arl import clock
from arl.bench import sglang_version
from arl.config.recipe import Recipe, TinyModel
from arl.engine.base import Engine
from arl.launch.base import Resources
from arl.launch.devices import visible_devices
from arl.launch.local import LocalLauncher
from arl.launch.network import new_key
from arl.launch.run_secrets import RunSecrets
from arl.models.load import DTYPES
from arl.models.tiny import make_tiny_model
from arl.run.failures import explain_deaths
from arl.run.processes import EngineServers
from arl.tasks.running_checksum import CHARACTERS
from arl.types import GenerateRequest, SamplingParams, StartingVersions

PROMPT_TOKENS = 26  # of the quickstart's task, bos included
LENGTH_P50 = 24.0  # of sampled tokens
LENGTH_SIGMA = 1.2  # lognormal: p99 / p50 = exp(2.33 σ) = 16, before the context cuts it
AT_A_TIME = (1, 8, 32, 128)
ROUNDS = 32  # so many times the requests at a time are enough to measure


class Measured(Struct):
    """Hold one measurement of all requests, so many at a time."""

    seconds: float
    latencies: list[float]  # seconds from a request to its last token, one for each


Side = Callable[[list[GenerateRequest], int], Awaitable[Measured]]
Round = dict[int, dict[str, Measured]]  # requests at a time -> side -> what was measured


def bench_engine(num_requests: int, threads: int, repeats: int) -> dict[str, Any]:
    """Measure all sides in interleaved repeats after a warm-up.

    Returns:
        For each number of requests at a time: useful tokens/s and latencies of each side, and their ratios. The version
        of SGLang is "absent" if its environment is not found; then it is not measured.
    """
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as directory:
        make_tiny_model(TinyModel(), CHARACTERS, 0, Path(directory) / "model")
        return clock.run(lambda: _measure(Path(directory), num_requests, threads, repeats))


async def _measure(directory: Path, num_requests: int, threads: int, repeats: int) -> dict[str, Any]:
    has_gpu = torch.cuda.is_available()
    dtype = "bfloat16" if has_gpu else "float32"
    stock = AutoModelForCausalLM.from_pretrained(directory / "model", dtype=DTYPES[dtype])
    stock.to(torch.device("cuda" if has_gpu else "cpu")).eval()
    stock.generation_config.eos_token_id = None  # lengths are imposed on all sides
    requests = _requests(num_requests, stock.config.vocab_size)
    sglang = sglang_version()
    kinds = {"arl": "embedded"}
    if sglang != "absent":
        kinds["sglang"] = "sglang"
    resources = Resources(threads, visible_devices()[:1])
    async with contextlib.AsyncExitStack() as stack:
        sides: dict[str, Side] = {}
        for name, kind in kinds.items():
            sides[name] = await _served(stack, directory, kind, dtype, resources)
        sides["hf_generate"] = _hf_generate(stock)
        await _measure_round(sides, requests)  # warms up
        rounds = [await _measure_round(sides, requests) for _ in range(repeats)]
    at_a_time = {count: _report(_share(requests, count), count, rounds) for count in AT_A_TIME}
    p50, p99 = np.percentile([request.sampling.max_new_tokens for request in requests], [50, 99])
    return {
        "sglang": sglang,
        "device": torch.cuda.get_device_name() if has_gpu else "CPU",
        "dtype": dtype,
        "threads": threads,
        "length_p50": float(p50),
        "length_p99": float(p99),
        "at_a_time": at_a_time,
    }


async def _measure_round(sides: dict[str, Side], requests: list[GenerateRequest]) -> Round:
    """Measure every side once, in turn, with every number of requests at a time."""
    measured: Round = {}
    for count in AT_A_TIME:
        share = _share(requests, count)
        measured[count] = {name: await side(share, count) for name, side in sides.items()}
    return measured


def _share(requests: list[GenerateRequest], count: int) -> list[GenerateRequest]:
    """Return as many requests as are enough to measure `count` at a time."""
    return requests[: count * ROUNDS]


def _requests(count: int, vocab_size: int) -> list[GenerateRequest]:
    """Draw distinct prompts of the quickstart's length, with lognormal budgets."""
    random = np.random.default_rng(0)
    room = TinyModel().context - PROMPT_TOKENS
    drawn = random.lognormal(np.log(LENGTH_P50), LENGTH_SIGMA, count)
    lengths = drawn.round().clip(1, room)
    prompts = random.integers(0, vocab_size, (count, PROMPT_TOKENS))
    return [
        GenerateRequest(f"bench-{i}", tuple(prompts[i].tolist()), SamplingParams(int(lengths[i]), seed=i))
        for i in range(count)
    ]


async def _served(
    stack: contextlib.AsyncExitStack, directory: Path, kind: str, dtype: str, resources: Resources
) -> Side:
    """Start a server as a run does; `stack` stops it."""
    model = str(directory / "model")
    recipe = Recipe.model_validate(
        {
            "model": {"path": model},
            "data": {"task": "running_checksum"},
            "engine": {"kind": kind, "slots": max(AT_A_TIME), "dtype": dtype},
            "deadlines": {"startup": 300},  # on a GPU the first SGLang compiles kernels
        }
    )
    launcher = LocalLauncher(directory / kind, recipe.deadlines.shutdown)
    await stack.enter_async_context(launcher)
    await stack.enter_async_context(explain_deaths(launcher))
    servers = EngineServers(recipe, StartingVersions(model), {0: resources}, launcher, RunSecrets(new_key()))
    server = await servers.start(0)
    url = await server.ready(recipe.deadlines.startup)
    engine = await stack.enter_async_context(servers.connect(url))
    return lambda requests, count: _generate(engine, requests, count)


async def _generate(engine: Engine, requests: list[GenerateRequest], count: int) -> Measured:
    """Let `count` callers each ask for the next request when their last one is over."""
    line = iter(requests)
    latencies: list[float] = []

    async def call() -> None:
        for request in line:
            begin = perf_counter()
            async for _ in engine.generate(request):
                pass
            latencies.append(perf_counter() - begin)

    start = perf_counter()
    async with asyncio.TaskGroup() as callers:
        for _ in range(count):
            callers.create_task(call())
    return Measured(perf_counter() - start, latencies)


def _hf_generate(model: PreTrainedModel) -> Side:
    """Generate batches in order of arrival, each as long as its longest; answers when all of a batch is done."""

    @torch.inference_mode()
    def generate(batch: list[GenerateRequest]) -> None:
        prompts = torch.tensor([request.input_ids for request in batch], device=model.device)
        longest = max(request.sampling.max_new_tokens for request in batch)
        generated = model.generate(
            prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, max_new_tokens=longest
        )
        assert generated.shape[1] == PROMPT_TOKENS + longest

    async def measure(requests: list[GenerateRequest], count: int) -> Measured:
        latencies: list[float] = []
        start = perf_counter()
        for i in range(0, len(requests), count):
            batch = requests[i : i + count]
            begin = perf_counter()
            generate(batch)
            latencies += [perf_counter() - begin] * len(batch)
        return Measured(perf_counter() - start, latencies)

    return measure


def _report(requests: list[GenerateRequest], count: int, rounds: list[Round]) -> dict[str, Any]:
    """Report every side with `count` requests at a time."""
    tokens = sum(request.sampling.max_new_tokens for request in requests)
    sides: dict[str, dict[str, Any]] = {}
    for name in rounds[0][count]:
        repeats = [measured[count][name] for measured in rounds]
        rates = [tokens / measured.seconds for measured in repeats]
        p50, p99 = np.percentile(np.concatenate([measured.latencies for measured in repeats]), [50, 99])
        sides[name] = {
            "useful_tokens_per_s": round(statistics.median(rates), 1),
            "repeats": [round(rate, 1) for rate in rates],
            "latency_p50_s": round(float(p50), 4),
            "latency_p99_s": round(float(p99), 4),
        }
    ours = sides["arl"]["useful_tokens_per_s"]
    ratios = {name: round(ours / side["useful_tokens_per_s"], 2) for name, side in sides.items() if name != "arl"}
    return {"requests": len(requests), **sides, "arl_ratio": ratios}
