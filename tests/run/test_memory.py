"""A plan refuses what cannot fit, and counts both sides of shared GPUs."""

import re
from typing import Any

import pytest

from arl.config.recipe import Recipe
from arl.data.model_limits import ModelShape
from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.placement import RESERVE, place
from arl.run.memory import (
    CONTEXT,
    PROCESS_ON_CPU,
    MemoryInputs,
    MemoryPlan,
    plan_memory,
    refuse_overfull,
)
from arl.sync.choose import choose_transport
from arl.train.rank_bytes import FLOAT32, MOMENTS_BYTES, ParameterCounts
from tests.published_models import PUBLISHED

GIGABYTE = 10**9
SEVEN = "Qwen2.5-7B-Instruct"
# Parameters of the published model, counted from its sizes: all, of one block, of embedding, norm and head.
COUNTS = ParameterCounts(7_615_616_512, 233_057_792, 1_089_998_336)


def recipe(**sections: Any) -> Recipe:
    tree: dict[str, Any] = {
        "model": {"path": "a model"},
        "data": {"task": "gsm8k"},
        "rollout": {"problems_per_step": 64, "group_size": 8, "max_new_tokens": 2048},
        "engine": {"kind": "sglang", "replicas": 4, "dtype": "bfloat16"},
        "train": {"ranks": 4, "dtype": "bfloat16", "minibatches": 1},
        "eval": {"problems": 0},
    }
    for name, fields in sections.items():
        tree[name] = tree.get(name, {}) | fields if isinstance(fields, dict) else fields
    return Recipe.model_validate(tree)


def planned(tried: Recipe, num_gpus: int = 8) -> MemoryPlan:
    """Plan a recipe for a model of 7B on GPUs of 80 GB."""
    device_bytes = 80 * GIGABYTE if num_gpus else None
    placement = place(tried, [Node("a machine", 64, tuple(map(str, range(num_gpus))), "GPU", device_bytes)])
    transport = choose_transport(
        tried,
        backend_transports=tried.engine.capabilities.transports,
        one_process=False,
        on_gpus=num_gpus > 0,
    )
    sizes = MemoryInputs(
        shape=ModelShape.of(PUBLISHED[SEVEN]),
        parameters=COUNTS,
        context=32_768,
        longest=256 + tried.rollout.max_new_tokens,
        kept=2,
        device_bytes=device_bytes,
        host_bytes=None,
    )
    return plan_memory(tried, placement, transport, sizes)


def parts(memory: MemoryPlan, budget: int) -> dict[str, int]:
    return memory.budgets[budget].parts


def test_7b_with_all_activations_on_two_ranks_is_refused_with_its_largest_part() -> None:
    with pytest.raises(InputError) as raised:
        refuse_overfull(planned(recipe(train={"ranks": 2})), "a machine", "; one more sentence")
    message = str(raised.value)
    assert re.search(r"each trainer GPU needs 2\d\d\.\d GB at its peak, in the loss, and has 80.0 GB", message)
    assert re.search(r"the largest parts in GB: activations 1\d\d\.\d", message)
    assert "Set, in this order, train.checkpointing full, a smaller train.capacity" in message
    assert message.endswith("; one more sentence")


def test_a_collocated_engine_gets_what_is_free_beside_the_rank_and_leaves_room_for_what_the_rank_publishes() -> None:
    settings = recipe(mode="collocated", engine={"replicas": 8}, train={"ranks": 8, "checkpointing": "full"})
    memory = planned(settings)
    generates = parts(memory, 1)
    share = memory.engine_share
    assert share is not None
    resident = (FLOAT32 + MOMENTS_BYTES) * COUNTS.total // 8
    published = generates["trainer's weights and AdamW's moments"] - resident
    assert published > 0
    free = 80 * GIGABYTE - 2 * CONTEXT - resident  # when SGLang begins
    assert generates["engine's weights"] + generates["KV cache"] == int(share * free)
    assert (1 - share) * free >= published + RESERVE * 80 * GIGABYTE - 1e-3 * free
    assert memory.budgets[1].needed <= 80 * GIGABYTE


def test_on_a_cpu_the_workers_of_an_engine_hold_together_what_one_would_and_are_a_process_each() -> None:
    alone = parts(planned(recipe(), num_gpus=0), 0)
    divided = parts(planned(recipe(engine={"tensor_parallel": 2}), num_gpus=0), 0)
    workers = recipe().engine.replicas
    assert divided == alone | {"processes": alone["processes"] + workers * PROCESS_ON_CPU}
