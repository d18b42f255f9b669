"""Measure tokens/s and MFU of whole training steps: `arl bench trainer`.

    random weights of a shape ─► safetensors ─► Learner, as in a rank ─► steps over one pack of trajectories

A step is everything that a rank does with a shard: forward, objective, backward, norm, clip, AdamW, metrics.
"""

import gc
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, Qwen2Config

from arl.config.recipe import Train
from arl.errors import InputError
from arl.train.algorithms.ppo import PPO
from arl.train.learner import Learner
from arl.train.micro_batch import MicroBatch, pack_groups
from arl.train.packing import LossSequence, Minibatch, Shard

PROMPT = 256  # tokens
GROUP = 4  # trajectories

# A response's length in tokens is lognormal.
MEDIAN = 1024
SIGMA = 0.8
LEAST = 64
MOST = 8192
WARMUP_STEPS = 2


def _qwen2(vocab_size: int, hidden: int, mlp: int, layers: int, heads: int) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )


# Qwen2.5's 0.5B and 1.5B, and a model that a CPU trains in a second or two.
SHAPES = {
    "0.5B": _qwen2(151_936, 896, 4864, 24, 14),
    "1.5B": _qwen2(151_936, 1536, 8960, 28, 12),
    "tiny": _qwen2(4096, 256, 768, 4, 4),
}
ON_GPU = [(shape, tokens) for shape in ("0.5B", "1.5B") for tokens in (16_384, 32_768)]
ON_CPU = [("tiny", 2048), ("tiny", 4096)]


def bench_trainer(steps: int, threads: int, checkpointing: str, compiled: bool) -> dict[str, Any]:
    """Measure every shape and pack size for this device: medians over `steps` steps, after two that warm up.

    Args:
        threads: CPU threads.
        checkpointing, compiled: as in the recipe section `train`.

    Raises:
        InputError: the recipe refuses these settings.
    """
    gpu = torch.cuda.is_available()
    settings = {"checkpointing": checkpointing, "compile": compiled, "dtype": "bfloat16" if gpu else "float32"}
    try:
        train = Train.model_validate({"minibatches": 1, "threads": threads, **settings})
    except ValidationError as error:
        raise InputError(str(error)) from error
    rows = []
    for shape, tokens in ON_GPU if gpu else ON_CPU:
        try:
            rows.append(_measure(shape, tokens, train, steps))
        except torch.OutOfMemoryError:
            rows.append({"shape": shape, "packed_tokens": tokens, "step_seconds": "out of memory"})
    return {
        "device": torch.cuda.get_device_name() if gpu else f"CPU, {threads} threads",
        "train": settings,
        "rows": rows,
    }


def _measure(shape: str, tokens: int, train: Train, steps: int) -> dict[str, Any]:
    gc.collect()  # frees the last row's model, whose parts refer to each other
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as name:
        write_model(shape, Path(name))
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        learner = Learner(name, train, PPO())
    ((batch,),) = pack_groups(_groups(tokens, SHAPES[shape].vocab_size), tokens, ranks=1)
    minibatch = Minibatch((batch,), loss_tokens=len(batch.loss_scores), loss_sequences=int(batch.sequences.max()) + 1)
    rows = [_timed_step(learner, Shard(version, (minibatch,))) for version in range(WARMUP_STEPS + steps)]
    del rows[:WARMUP_STEPS]
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[-1]}
    mfu = medians.get("hardware/mfu")
    return {
        "shape": shape,
        "packed_tokens": len(batch.token_ids),
        "scored_tokens": len(batch.score_positions),
        "step_seconds": round(medians["seconds"], 4),
        "tokens_per_s": round(len(batch.token_ids) / medians["seconds"], 1),
        "tflops": round(medians["hardware/tflops"], 4),
        "mfu": None if mfu is None else round(mfu, 4),
        "memory_gb": round(medians["hardware/memory_gb"], 2),
        "repeats": [round(row["seconds"], 4) for row in rows],
    }


def _timed_step(learner: Learner, shard: Shard[MicroBatch]) -> dict[str, float]:
    """Train one step; return its metrics and its seconds."""
    start = _now()
    metrics = learner.step(shard)
    seconds = _now() - start
    numbers = {name: value for name, value in metrics.items() if not isinstance(value, list)}
    return {**numbers, "seconds": seconds}


def write_model(shape: str, directory: Path) -> None:
    """Write random weights in bfloat16, the type of published models."""
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(SHAPES[shape], dtype=torch.bfloat16)
    model.save_pretrained(directory)


def _groups(tokens: int, vocab_size: int) -> list[list[LossSequence]]:
    """Draw groups of trajectories that share a prompt until the pack is full; the last one is cut to fit."""
    rng = np.random.default_rng(0)
    groups: list[list[LossSequence]] = []
    left = tokens
    while left > PROMPT + LEAST:
        prompt = rng.integers(0, vocab_size, PROMPT)
        left -= PROMPT
        groups.append([])
        while left >= LEAST and len(groups[-1]) < GROUP:
            drawn = int(rng.lognormal(math.log(MEDIAN), SIGMA))
            length = min(left, MOST, max(LEAST, drawn))
            response = rng.integers(0, vocab_size, length)
            sequence = LossSequence(
                token_ids=np.concatenate([prompt, response]).astype(np.int32),
                loss_at=np.arange(PROMPT, PROMPT + length),
                columns={
                    "behavior_logprobs": np.full(length, -math.log(vocab_size), np.float32),
                    "policy_versions": np.zeros(length, np.int32),
                    "advantages": np.full(length, rng.normal(), np.float32),
                },
            )
            groups[-1].append(sequence)
            left -= length
    return groups


def _now() -> float:
    """Return seconds, after the device has finished everything that was launched."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
