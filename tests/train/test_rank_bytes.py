"""The memory that is planned for a trainer rank is what the allocator counts, in every family and mode."""

import gc
import itertools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM

from arl.config.recipe import Train
from arl.data.model_limits import ModelShape
from arl.models.load import empty_model
from arl.train import sharding
from arl.train.algorithms.gae import GAE
from arl.train.algorithms.ppo import PPO
from arl.train.critic import give_value_head
from arl.train.learner import Learner
from arl.train.micro_batch import MicroBatch, pack_groups
from arl.train.packing import Minibatch, Shard
from arl.train.rank_bytes import ParameterCounts, Workload, rank_bytes, with_critic
from tests.train.columns import loss_sequence
from tests.train.families import FAMILIES, configs

pytestmark = pytest.mark.usefixtures("alone")

TOLERANCE = 0.10
TOKENS = 512
PROMPT = 16
# Large enough that activations are most of the peak, so that a wrong mode or family is off by more than the tolerance.
SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 96,
    "intermediate_size": 288,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 1024,
}


@pytest.fixture(autouse=True)
def _blocks_are_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have FSDP2 gather each block by itself, as it does with every model that is worth planning for."""
    monkeypatch.setattr(sharding, "WORTH_A_COLLECTIVE", 1 << 14)


def most_live_bytes(trace: profile) -> int:
    """Return the most that torch's allocator held after one of its calls."""
    assert trace.profiler is not None
    results = trace.profiler.kineto_results
    assert results is not None
    calls = [event for event in results.events() if event.name() == "[memory]"]
    calls.sort(key=lambda event: event.start_ns())
    sizes = [int(event.nbytes()) for event in calls]  # type: ignore[attr-defined]  # negative: freed
    return max(itertools.accumulate(sizes))


def minibatch(micro_batches: int) -> Minibatch[MicroBatch]:
    """Micro-batches of one sequence each, of which a pack holds TOKENS tokens: its last token is only a target."""
    tokens = np.random.default_rng(0).integers(0, SIZES["vocab_size"], TOKENS + 1).astype(np.int32)
    loss_at = np.arange(PROMPT, TOKENS + 1)
    ones = np.ones(len(loss_at), np.float32)
    sequence = loss_sequence(tokens, loss_at, advantages=ones, behavior=-5 * ones)
    packs = pack_groups([[sequence] for _ in range(micro_batches)], TOKENS, ranks=1)[0]
    assert [len(pack.token_ids) for pack in packs] == [TOKENS] * micro_batches
    return Minibatch(packs, loss_tokens=micro_batches * len(loss_at), loss_sequences=micro_batches)


@pytest.mark.parametrize(
    ("family", "micro_batches", "settings"),
    [
        *(("llama", 1, {"checkpointing": mode}) for mode in ("none", "selective", "full")),
        *((family, 1, {"checkpointing": "selective"}) for family in FAMILIES if family != "llama"),
        *(("llama", 3, {"checkpointing": mode, "reshard": True}) for mode in ("none", "full")),
    ],
)
def test_the_planned_peak_is_the_allocators(
    family: str, micro_batches: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(configs(SIZES)[family]).save_pretrained(tmp_path)
    train = Train(minibatches=1, learning_rate=1e-4, threads=1, dtype="float32", **settings)
    model = empty_model(tmp_path)
    work = Workload(TOKENS, accumulates=micro_batches > 1, device="cpu")
    planned = rank_bytes(ParameterCounts.of(model), ModelShape.of(model.config), train, work)
    given = minibatch(micro_batches)
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        Learner(tmp_path, train, PPO()).step(Shard(0, (given,)))
    assert planned.peak == pytest.approx(most_live_bytes(trace), rel=TOLERANCE)


def test_a_critic_adds_its_own_shards_to_the_planned_peak(tmp_path: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(configs(SIZES)["llama"]).save_pretrained(tmp_path)
    train = Train(minibatches=1, learning_rate=1e-4, threads=1, dtype="float32", critic={"warmup_steps": 0})  # type: ignore[arg-type]
    model = empty_model(tmp_path)
    work = Workload(TOKENS, accumulates=True, device="cpu")
    policy = rank_bytes(ParameterCounts.of(model), ModelShape.of(model.config), train, work)
    give_value_head(model)
    shape = msgspec.structs.replace(ModelShape.of(model.config), vocab_size=1)
    planned = with_critic(policy, rank_bytes(ParameterCounts.of(model), shape, train, work))
    given = minibatch(3)
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        Learner(tmp_path, train, PPO(), advantage=GAE()).step(Shard(0, (given,)))
    assert planned.peak == pytest.approx(most_live_bytes(trace), rel=TOLERANCE)
