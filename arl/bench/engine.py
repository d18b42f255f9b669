"""The embedded engine beside Hugging Face `generate`, on ragged lengths, in one process, with equal threads.

    256 requests, lognormal lengths ─► 32 slots, continuous batching         ─► useful tokens/s
                                    └► batches of 32, as long as their longest ─► useful tokens/s

Both sample from the same random weights, with lengths imposed. The engine's recorded logprobs are then
compared with stock transformers' float32 forward, one sequence at a time, and with the trainer's packed forward.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from arl.data.checksum import CHARACTERS
from arl.engine.embedded import EmbeddedEngine
from arl.models.load import load_model
from arl.models.tiny import make_tiny_model
from arl.recipe import TinyModel, Train
from arl.train.fsdp import ShardedModel, init_ranks
from arl.train.packer import LossSequence, pack_groups
from arl.types import GenerateRequest, SamplingParams

PROMPT_TOKENS = 26  # of the quickstart's task, bos included
LENGTH_P50, LENGTH_SIGMA = 24.0, 1.2  # lognormal: p99 / p50 = exp(2.33 σ) = 16, before the context cuts it

Response = tuple[tuple[int, ...], tuple[int, ...], np.ndarray]  # prompt, sampled ids, logprobs (L,) float32


def bench_engine(num_requests: int, slots: int, threads: int, repeats: int) -> dict[str, Any]:
    """Measure both sides in interleaved repeats after a warm-up.

    Returns:
        useful tokens/s of both (medians and repeats), their ratio, the lengths, and the logprob differences
    """
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as directory:
        make_tiny_model(TinyModel(), CHARACTERS, 0, Path(directory))
        model = load_model(directory, "float32")
        stock = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        trained = ShardedModel(directory, Train(), 1.0, init_ranks(deadline_seconds=60.0))
    stock.generation_config.eos_token_id = None  # lengths are imposed on both sides
    requests = _requests(num_requests, model.config.vocab_size)
    rates: dict[str, list[float]] = {"arl": [], "hf_generate": []}
    for _ in range(repeats + 1):
        responses, seconds = asyncio.run(_generate(model, requests, slots))
        rates["arl"].append(_tokens(requests) / seconds)
        rates["hf_generate"].append(_tokens(requests) / _hf_generate(stock, requests, slots))
    return {
        "requests": num_requests,
        "slots": slots,
        "threads": threads,
        **_report(requests, rates),
        "logprobs_beside_stock_forward": _beside_stock_forward(stock, responses),
        "logprobs_beside_packed_forward": _beside_packed_forward(trained, responses),
    }


def _tokens(requests: list[GenerateRequest]) -> int:
    return sum(request.sampling.max_new_tokens for request in requests)


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


async def _generate(
    model: PreTrainedModel, requests: list[GenerateRequest], slots: int
) -> tuple[list[Response], float]:
    """All requests through the engine; returns what was sampled and the seconds it took."""

    async def one(request: GenerateRequest) -> Response:
        ids: list[int] = []
        logprobs: list[float] = []
        async for increment in engine.generate(request):
            ids += increment.token_ids
            logprobs += increment.logprobs
        return request.input_ids, tuple(ids), np.array(logprobs, np.float32)

    async with EmbeddedEngine(model, slots=slots) as engine:
        start = time.perf_counter()
        responses = await asyncio.gather(*(one(request) for request in requests))
        return responses, time.perf_counter() - start


def _hf_generate(model: PreTrainedModel, requests: list[GenerateRequest], batch: int) -> float:
    """Seconds for batches of `batch`, in order of arrival, each as long as its longest."""
    start = time.perf_counter()
    for i in range(0, len(requests), batch):
        some = requests[i : i + batch]
        prompts = torch.tensor([request.input_ids for request in some])
        longest = max(request.sampling.max_new_tokens for request in some)
        with torch.inference_mode():
            out = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                top_k=0,
                max_new_tokens=longest,
            )
        assert out.shape[1] == PROMPT_TOKENS + longest
    return time.perf_counter() - start


@torch.inference_mode()
def _beside_stock_forward(model: PreTrainedModel, responses: list[Response]) -> dict[str, float]:
    """Recorded logprobs against transformers' own forward, one sequence at a time."""
    differences = []
    for prompt, ids, recorded in responses:
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
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
                advantage=1.0,
            )
        ]
        for prompt, ids, recorded in responses
    ]
    (packs,) = pack_groups(groups, capacity=4096, ranks=1)
    return _size([model.score(pack)[0].numpy()[pack.loss_scores] - pack.behavior_logprobs for pack in packs])


def _size(differences: list[np.ndarray]) -> dict[str, float]:
    absolute = np.abs(np.concatenate(differences))
    return {"mean": float(absolute.mean()), "max": float(absolute.max())}


def _report(requests: list[GenerateRequest], rates: dict[str, list[float]]) -> dict[str, Any]:
    lengths = [request.sampling.max_new_tokens for request in requests]
    measured = {side: values[1:] for side, values in rates.items()}  # the first repeat warms up
    medians = {side: statistics.median(values) for side, values in measured.items()}
    p50, p99 = np.percentile(lengths, [50, 99])
    return {
        "useful_tokens_per_s": {side: round(value, 1) for side, value in medians.items()},
        "repeats": {side: [round(value, 1) for value in values] for side, values in measured.items()},
        "ratio": round(medians["arl"] / medians["hf_generate"], 2),
        "length_p50": float(p50),
        "length_p99": float(p99),
    }
