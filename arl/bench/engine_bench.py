"""The embedded engine beside SGLang and Hugging Face `generate`: one tiny model, ragged lengths, equal threads.

    1, 8, 32, 128 requests at a time, lognormal lengths ─► the embedded engine's server, over HTTP  ─► tokens/s, latency
                                                        ├► SGLang's server, likewise                ─► tokens/s, latency
                                                        └► generate, here, in batches of so many    ─► tokens/s, latency

All sample from the same random weights, with lengths imposed: in float32 on the CPU, in bfloat16 on one GPU where there
is one. The logprobs that engines record are then compared with stock transformers' float32 forward, one sequence at a
time, and with the trainer's packed forward.
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
from arl.config.recipe import Recipe, TinyModel, Train
from arl.engine.base import Engine
from arl.launch.address import new_key
from arl.launch.base import Resources
from arl.launch.devices import visible_devices
from arl.launch.local import LocalLauncher
from arl.models.load import DTYPES
from arl.models.tiny import make_tiny_model
from arl.run.engines import EngineServers
from arl.run.failures import explain_deaths
from arl.tasks.running_checksum import CHARACTERS
from arl.train.loss_sequence import LossSequence
from arl.train.packer import pack_groups
from arl.train.rendezvous import init_ranks
from arl.train.sharded_model import ShardedModel
from arl.types import GenerateRequest, SamplingParams, StartingVersions

PROMPT_TOKENS = 26  # of the quickstart's task, bos included
LENGTH_P50, LENGTH_SIGMA = 24.0, 1.2  # lognormal: p99 / p50 = exp(2.33 σ) = 16, before the context cuts it
AT_A_TIME = (1, 8, 32, 128)
ROUNDS = 32  # so many times the requests at a time are enough to measure

Response = tuple[tuple[int, ...], tuple[int, ...], np.ndarray]  # prompt, sampled ids, logprobs (L,) float32


class Measured(Struct):
    """All requests, so many at a time, once."""

    seconds: float
    latencies: list[float]  # seconds from a request to its last token, one for each
    responses: list[Response] = []  # what an engine recorded


Side = Callable[[list[GenerateRequest], int], Awaitable[Measured]]


def bench_engine(num_requests: int, threads: int, repeats: int) -> dict[str, Any]:
    """Measure all sides in interleaved repeats after a warm-up.

    Returns:
        useful tokens/s (medians and repeats) and latencies of each side, so many requests at a time, their ratios, the
        lengths, and the logprob differences; of SGLang "absent", if its environment is not found
    """
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as directory:
        make_tiny_model(TinyModel(), CHARACTERS, 0, Path(directory) / "model")
        return clock.run(lambda: _measure(Path(directory), num_requests, threads, repeats))


async def _measure(directory: Path, num_requests: int, threads: int, repeats: int) -> dict[str, Any]:
    model, device = str(directory / "model"), init_ranks(deadline_seconds=60.0)
    train = Train(dtype="bfloat16" if device.type == "cuda" else "float32")
    resources = Resources(threads, visible_devices()[:1])
    stock = AutoModelForCausalLM.from_pretrained(model, dtype=DTYPES[train.dtype]).to(device).eval()
    stock.generation_config.eos_token_id = None  # lengths are imposed on all sides
    trained = ShardedModel(model, train, 1.0, device)
    requests = _requests(num_requests, stock.config.vocab_size)
    versions = {"sglang": sglang_version()}
    async with contextlib.AsyncExitStack() as stack:
        sides: dict[str, Side] = {"arl": await _served(stack, directory, "embedded", train.dtype, resources)}
        if versions["sglang"] != "absent":
            sides["sglang"] = await _served(stack, directory, "sglang", train.dtype, resources)
        sides["hf_generate"] = _HfGenerate(stock)
        rounds: list[dict[int, dict[str, Measured]]] = [
            {
                count: {name: await side(requests[: count * ROUNDS], count) for name, side in sides.items()}
                for count in AT_A_TIME
            }
            for _ in range(repeats + 1)
        ]
    stock.float()
    recorded = {name: rounds[-1][AT_A_TIME[-1]][name].responses for name in sides if name != "hf_generate"}
    p50, p99 = np.percentile([request.sampling.max_new_tokens for request in requests], [50, 99])
    return versions | {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "dtype": train.dtype,
        "threads": threads,
        "length_p50": float(p50),
        "length_p99": float(p99),
        "at_a_time": {count: _report(requests[: count * ROUNDS], count, rounds[1:]) for count in AT_A_TIME},
        "logprobs_beside_stock_forward": {name: _beside_stock_forward(stock, r) for name, r in recorded.items()},
        "logprobs_beside_packed_forward": {name: _beside_packed_forward(trained, r) for name, r in recorded.items()},
    }


def _requests(count: int, vocab_size: int) -> list[GenerateRequest]:
    """Distinct prompts of the quickstart's length, with lognormal budgets."""
    random = np.random.default_rng(0)
    lengths = np.exp(random.normal(np.log(LENGTH_P50), LENGTH_SIGMA, count)).round()
    lengths = lengths.clip(1, TinyModel().context - PROMPT_TOKENS).astype(int)
    prompts = random.integers(0, vocab_size, (count, PROMPT_TOKENS))
    return [
        GenerateRequest(f"bench-{i}", tuple(prompt), SamplingParams(length, seed=i))
        for i, (prompt, length) in enumerate(zip(prompts.tolist(), lengths.tolist(), strict=True))
    ]


async def _served(
    stack: contextlib.AsyncExitStack, directory: Path, kind: str, dtype: str, resources: Resources
) -> Side:
    """A server of its own, as a run starts it; `stack` ends it."""
    model = str(directory / "model")
    engine_section = {"kind": kind, "slots": max(AT_A_TIME), "dtype": dtype}
    settings: dict[str, Any] = {"engine": engine_section, "data": {"task": "running_checksum"}}
    settings["deadlines"] = {"startup": 300}  # on a GPU the first SGLang compiles kernels
    recipe = Recipe.model_validate({"model": {"path": model}, **settings})
    launcher = LocalLauncher(directory / kind, recipe.deadlines.shutdown)
    await stack.enter_async_context(launcher)
    await stack.enter_async_context(explain_deaths(launcher))
    servers = EngineServers(recipe, StartingVersions(model), [resources], launcher, new_key())
    server = await servers.start(0)
    engine = await stack.enter_async_context(servers.connect(await server.ready(recipe.deadlines.startup)))
    return lambda requests, count: _generate(engine, requests, count)


async def _generate(engine: Engine, requests: list[GenerateRequest], count: int) -> Measured:
    """`count` callers, each of which asks for the next request when its last one is over."""
    line, responses, latencies = iter(requests), list[Response](), list[float]()

    async def call() -> None:
        for request in line:
            begin, ids, logprobs = perf_counter(), list[int](), list[float]()
            async for increment in engine.generate(request):
                ids += increment.token_ids
                logprobs += increment.logprobs
            latencies.append(perf_counter() - begin)
            responses.append((request.input_ids, tuple(ids), np.array(logprobs, np.float32)))

    start = perf_counter()
    await asyncio.gather(*(call() for _ in range(count)))
    return Measured(perf_counter() - start, latencies, responses)


class _HfGenerate:
    """Batches in order of arrival, each as long as its longest; nobody hears of a request before its batch is over."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    async def __call__(self, requests: list[GenerateRequest], count: int) -> Measured:
        start, latencies = perf_counter(), list[float]()
        for i in range(0, len(requests), count):
            begin, some = perf_counter(), requests[i : i + count]
            prompts = torch.tensor([request.input_ids for request in some], device=self._model.device)
            longest = max(request.sampling.max_new_tokens for request in some)
            with torch.inference_mode():
                mask = torch.ones_like(prompts)
                out = self._model.generate(
                    prompts, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=longest
                )
            assert out.shape[1] == PROMPT_TOKENS + longest
            latencies += [perf_counter() - begin] * len(some)
        return Measured(perf_counter() - start, latencies)


@torch.inference_mode()
def _beside_stock_forward(model: PreTrainedModel, responses: list[Response]) -> dict[str, float]:
    """Recorded logprobs against transformers' own forward, one sequence at a time."""
    differences = []
    for prompt, ids, recorded in responses:
        logits = model(torch.tensor([prompt + ids], device=model.device)).logits[0, len(prompt) - 1 : -1].cpu()
        logprobs = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[:, None])
        differences.append(logprobs[:, 0].numpy() - recorded)
    return _size(differences)


@torch.no_grad()
def _beside_packed_forward(model: ShardedModel, responses: list[Response]) -> dict[str, float]:
    """Recorded logprobs, which travel with their tokens, against the trainer's forward of many sequences in a pack."""
    groups = [
        [
            LossSequence(
                token_ids=np.array(prompt + ids, np.int32),
                loss_at=np.arange(len(prompt), len(prompt) + len(ids)),
                behavior_logprobs=recorded,
                policy_versions=np.zeros(len(ids), np.int32),
                advantages=np.ones(len(ids), np.float32),
            )
        ]
        for prompt, ids, recorded in responses
    ]
    (packs,) = pack_groups(groups, capacity=4096, ranks=1)
    return _size([model.score(pack)[0].cpu().numpy()[pack.loss_scores] - pack.behavior_logprobs for pack in packs])


def _size(differences: list[np.ndarray]) -> dict[str, float]:
    absolute = np.abs(np.concatenate(differences))
    return {"mean": float(absolute.mean()), "max": float(absolute.max())}


def _report(
    requests: list[GenerateRequest], count: int, rounds: list[dict[int, dict[str, Measured]]]
) -> dict[str, Any]:
    tokens = sum(request.sampling.max_new_tokens for request in requests)
    sides: dict[str, Any] = {}
    for name in rounds[0][count]:
        measured = [one[count][name] for one in rounds]
        rates = [tokens / m.seconds for m in measured]
        p50, p99 = np.percentile([latency for m in measured for latency in m.latencies], [50, 99])
        sides[name] = {
            "useful_tokens_per_s": round(statistics.median(rates), 1),
            "repeats": [round(rate, 1) for rate in rates],
            "latency_p50_s": round(float(p50), 4),
            "latency_p99_s": round(float(p99), 4),
        }
    best = sides["arl"]["useful_tokens_per_s"]
    ratios = {name: round(best / side["useful_tokens_per_s"], 2) for name, side in sides.items() if name != "arl"}
    return {"requests": len(requests), **sides, "arl_ratio": ratios}
