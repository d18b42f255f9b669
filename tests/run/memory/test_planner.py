"""A plan refuses what cannot fit, offers only settings with which it fits, and counts both sides of shared GPUs."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Recipe
from arl.data.model_shape import ModelShape
from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.memory_share import engine_share
from arl.launch.placement import place
from arl.run.memory.budget import MemoryPlan
from arl.run.memory.engine_bytes import given_share, grown_capacity
from arl.run.memory.memory_text import memory_lines, tight_device
from arl.run.memory.planner import CONTEXT, MemoryInputs, plan_memory, workload
from arl.run.memory.remedies import find_remedies, refuse_overfull
from arl.sync.choose import choose_transport
from arl.train.rank_bytes import ParameterCounts
from tests.examples import examples
from tests.published_models import PUBLISHED

GIGABYTE = 10**9
SEVEN = "Qwen2.5-7B-Instruct"
# Parameters that the published models have, counted from their sizes: all, of one block, of embedding, norm and head.
COUNTS = {
    SEVEN: ParameterCounts(7_615_616_512, 233_057_792, 1_089_998_336),
    "Qwen2.5-1.5B-Instruct": ParameterCounts(1_543_714_304, 46_797_824, 233_375_232),
}


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


class Machine:
    """Plans recipes for one model on GPUs of one size."""

    def __init__(self, model: str = SEVEN, gigabytes: int = 80, gpus: int = 8) -> None:
        self.node = Node("a machine", 64, tuple(map(str, range(gpus))), "GPU", gigabytes * GIGABYTE)
        self.model = model
        self.host_bytes: int | None = None

    def __call__(self, tried: Recipe) -> MemoryPlan:
        placement = place(tried, [self.node])
        transport = choose_transport(
            tried,
            backend_transports=tried.engine.capabilities.transports,
            one_process=False,
            on_gpus=placement.on_gpus,
            shares_files=True,
        )
        longest = 256 + tried.rollout.max_new_tokens
        sizes = MemoryInputs(
            shape=ModelShape.of(PUBLISHED[self.model]),
            parameters=COUNTS[self.model],
            context=32_768,
            longest=longest,
            kept=2,
            device_bytes=self.node.device_bytes,
            host_bytes=self.host_bytes,
            hardware="a machine",
        )
        return plan_memory(tried, placement, transport, sizes)


def parts(memory: MemoryPlan, budget: int) -> dict[str, int]:
    return {part.name: part.bytes for part in memory.budgets[budget].parts}


def test_7b_with_all_activations_on_two_ranks_is_refused_with_its_largest_part() -> None:
    with pytest.raises(InputError) as raised:
        refuse_overfull(recipe(train={"ranks": 2}), Machine())
    message = str(raised.value)
    assert re.search(r"each trainer GPU needs 2\d\d\.\d GB at its peak, in the loss, and has 80.0 GB", message)
    assert re.search(r"the largest parts in GB: activations \(trainer\) 1\d\d\.\d", message)
    assert "It fits with --set train.checkpointing=full" in message


def test_weights_gradients_and_moments_are_those_of_the_model() -> None:
    memory = Machine()(recipe(train={"checkpointing": "full"}, sync={"buffers": "device"}))
    total = COUNTS[SEVEN].total
    trainer = parts(memory, 0)
    assert trainer["weights"] == total
    assert trainer["AdamW's moments"] == 2 * total
    assert trainer["gathered weights"] == 2 * total
    assert trainer["gradients"] == 4 * total
    assert trainer["published weights"] == 4 * total  # two versions in bfloat16
    assert parts(memory, 1)["weights"] == 2 * total


def test_a_cache_holds_as_many_tokens_as_its_bytes_have_room_for() -> None:
    memory = Machine()(recipe(train={"checkpointing": "full"}))
    per_token = 2 * 2 * 28 * 4 * 128  # keys and values of 28 layers with 4 heads of 128 numbers, in bfloat16
    assert memory.cache_tokens == parts(memory, 1)["KV cache"] // per_token
    assert memory.full_requests == memory.cache_tokens // (256 + 2048)
    halved = Machine()(recipe(engine={"replicas": 2, "tensor_parallel": 2}, train={"checkpointing": "full"}))
    assert halved.weights == memory.weights // 2
    assert halved.cache_tokens > 2 * memory.cache_tokens


def test_a_plan_advises_fewer_slots_where_not_all_can_be_long() -> None:
    settings = recipe(rollout={"max_new_tokens": 8192}, train={"checkpointing": "full"})
    memory = Machine()(settings)
    assert memory.full_requests < settings.engine.slots
    assert f"set engine.slots to {memory.full_requests}" in list(memory_lines(memory, settings))[-1]


def test_published_weights_are_told_apart_where_only_rank_0_holds_them() -> None:
    settings = recipe(train={"checkpointing": "full"}, sync={"buffers": "device"})
    memory = Machine()(settings)
    published = f"{4 * COUNTS[SEVEN].total / 1e9:.1f}"
    lines = list(memory_lines(memory, settings))
    assert lines[0].endswith(f"published weights are rank 0's alone, so the others need {published} less")
    instants = next(line for line in lines if line.startswith("torch allocates on rank 0"))
    assert f"{memory.rank_peak / 1e9:.1f}" in instants  # with published weights, as between two steps
    assert instants.endswith(f"between two steps {memory.rank_resident / 1e9:.1f}; on the others {published} less")


@pytest.mark.parametrize(
    "sections",
    [
        {"mode": "collocated", "engine": {"replicas": 4}, "train": {"checkpointing": "full"}},
        {"train": {"ranks": 1, "checkpointing": "full", "reshard": True}, "sync": {"buffers": "device"}},
        {"train": {"checkpointing": "full"}, "sync": {"buffers": "host"}},
    ],
    ids=["a version on each rank", "one rank", "a version on the host"],
)
def test_ranks_of_equal_memory_are_not_told_apart(sections: dict[str, Any]) -> None:
    settings = recipe(**sections)
    lines = list(memory_lines(Machine(gigabytes=200)(settings), settings))
    assert not any("the others" in line for line in lines)
    assert any(line.startswith("torch allocates on a rank") for line in lines)


def test_a_trainer_gpu_that_is_planned_almost_full_is_noted_with_settings_that_leave_more_room() -> None:
    settings = recipe(sync={"buffers": "device"})
    needed = Machine()(settings).budgets[0].needed
    machine = Machine(gigabytes=needed // GIGABYTE + 1)
    offered = []
    while notes := list(tight_device(machine(settings), settings)):
        before = machine(settings).budgets[0]
        assert before.available is not None
        assert f"{before.needed / 1e9:.1f} of {before.available / 1e9:.1f} GB" in notes[0]
        remedy = re.search(r"; (\S+) (\S+) leaves more room$", notes[0])
        assert remedy is not None, notes
        section, name = remedy[1].split(".")
        tree = settings.model_dump(mode="json")
        tree[section][name] = remedy[2]
        settings = Recipe.model_validate(tree)
        assert machine(settings).budgets[0].needed < before.needed
        offered.append(remedy[1])
    assert offered[0] == "sync.buffers"


def test_a_trainer_gpu_with_room_is_not_noted() -> None:
    settings = recipe(train={"checkpointing": "full"})
    assert not list(tight_device(Machine(gigabytes=200)(settings), settings))


def test_both_sides_of_a_shared_gpu_are_counted_in_both_turns() -> None:
    settings = recipe(mode="collocated", engine={"replicas": 8}, train={"ranks": 8, "checkpointing": "full"})
    trains, generates = Machine()(settings).budgets[:2]
    assert {part.owner for part in trains.parts} == {part.owner for part in generates.parts} == {"trainer", "engine"}
    alone = Machine()(recipe(engine={"replicas": 4}, train={"checkpointing": "full"}))
    shared = Machine()(settings)
    assert shared.cache_tokens < alone.cache_tokens


def test_the_cache_of_a_collocated_engine_has_the_share_that_the_run_will_give_it() -> None:
    settings = recipe(mode="collocated", engine={"replicas": 8}, train={"ranks": 8, "checkpointing": "full"})
    memory = Machine()(settings)
    share = engine_share(80 * GIGABYTE, memory.rank_resident)
    generates = parts(memory, 1)
    assert generates["weights"] + generates["KV cache"] == pytest.approx(share * (80 * GIGABYTE - CONTEXT), abs=1)
    assert memory.budgets[1].fits


def test_a_share_that_the_recipe_gives_decides_about_the_cache() -> None:
    assert given_share(["--mem-fraction-static", "0.5", "--other", "1"]) == 0.5
    assert given_share(["--mem-fraction-static=0.5"]) == 0.5
    assert given_share(["--other"]) is None
    full = {"checkpointing": "full"}
    small = Machine()(recipe(engine={"args": ["--mem-fraction-static", "0.5"]}, train=full))
    assert small.cache_tokens < Machine()(recipe(train=full)).cache_tokens


def test_an_engine_whose_weights_leave_no_room_for_one_request_is_refused_with_tensor_parallelism() -> None:
    settings = recipe(engine={"replicas": 1}, train={"ranks": 4, "checkpointing": "full", "reshard": True})
    with pytest.raises(InputError) as raised:
        refuse_overfull(settings, Machine(gigabytes=24))
    assert "each engine GPU needs" in str(raised.value)


@pytest.mark.parametrize(
    ("packing", "least"),
    [({}, 256 + 8000), ({"packing": "fixed", "packing_count": 2}, 2 * (256 + 8000))],
)
def test_no_capacity_is_offered_that_the_longest_trajectories_exceed(packing: dict[str, Any], least: int) -> None:
    settings = recipe(
        rollout={"max_new_tokens": 8000},
        train={"ranks": 4, "capacity": 2 * least - 100, **packing},
    )
    offered = list(find_remedies(settings, Machine()))
    capacities = [remedy["train.capacity"] for remedy in offered if "train.capacity" in remedy]
    assert offered
    assert all(capacity >= least for capacity in capacities), offered


def with_(settings: Recipe, changes: Mapping[str, Any]) -> Recipe:
    tree = settings.model_dump(mode="json")
    for field, value in changes.items():
        section, name = field.split(".")
        tree[section][name] = value
    return Recipe.model_validate(tree)


LEAST = {"checkpointing": "full", "reshard": True}


def test_the_same_gpus_divided_otherwise_are_offered_the_nearest_division_first() -> None:
    settings = recipe(rollout={"max_new_tokens": 8192}, train={"ranks": 4, **LEAST})
    first = next(iter(find_remedies(settings, Machine(gigabytes=44))))
    assert first == {"train.capacity": 8704}  # 256 + 8192 tokens, rounded up
    settings = with_(settings, {"train.capacity": 8704})
    offered = list(find_remedies(settings, Machine(gigabytes=40)))
    assert offered[0]["engine.replicas"] + offered[0]["train.ranks"] == 8
    assert offered[0]["train.ranks"] > 4


def test_no_division_is_offered_that_the_recipe_cannot_have() -> None:
    settings = recipe(train={"ranks": 4, "shard_ranks": 4, **LEAST})
    for remedy in find_remedies(settings, Machine(gigabytes=32)):
        assert remedy.get("train.ranks", 4) % 4 == 0


def test_gpus_that_train_enough_but_cannot_hold_an_engine_are_joined_to_wider_engines() -> None:
    settings = recipe(engine={"replicas": 8}, train={"ranks": 8, "capacity": 2560, **LEAST})
    remedies = list(find_remedies(settings, Machine(gigabytes=24, gpus=16)))
    assert remedies
    assert all(remedy["engine.tensor_parallel"] > 1 for remedy in remedies), remedies


def test_a_refusal_without_remedy_names_what_was_tried() -> None:
    settings = recipe(rollout={"max_new_tokens": 8192}, train={"ranks": 4, **LEAST})
    with pytest.raises(InputError) as raised:
        refuse_overfull(settings, Machine(gigabytes=16), hint="One more sentence")
    message = str(raised.value)
    assert "It fits with none of these, alone or together: train.capacity 8704; " in message
    assert "engine.replicas/train.ranks 3/5, 5/3, 2/6, 6/2, 1/7, 7/1" in message
    assert "train.ranks 8" not in message  # there are no GPUs for them
    assert message.endswith("or larger or more GPUs. One more sentence")


def test_on_a_cpu_fewer_processes_are_tried_and_no_gpus_are_asked_for() -> None:
    machine = Machine(gpus=0)
    machine.host_bytes = 10 * GIGABYTE
    with pytest.raises(InputError) as raised:
        refuse_overfull(recipe(train={"ranks": 2}), machine)
    assert "engine.replicas 1; train.ranks 1; " in str(raised.value)
    assert "or a machine with more memory" in str(raised.value)


def test_an_update_stores_the_prompt_of_a_group_once_where_its_packing_does() -> None:
    rollout = {"problems_per_step": 2, "group_size": 4, "max_new_tokens": 100}

    def tokens(**train: Any) -> int:
        tried = recipe(rollout=rollout, train={"ranks": 1, "minibatches": 1, **train})
        return workload(tried, longest=1100, on_gpus=True).tokens

    assert tokens() == 2 * (1000 + 4 * 100)
    assert tokens(packing="algorithm1") == 2 * 4 * 1100
    assert tokens(capacity=2000) == 2000
    assert tokens(ranks=2, minibatches=2) == 1100  # never less than one trajectory


def test_a_memory_that_nobody_knows_refuses_nothing() -> None:
    machine = Machine()
    machine.node = Node("a machine", 64, machine.node.devices)
    assert refuse_overfull(recipe(train={"ranks": 2}), machine).fits


@examples(1)
@given(
    model=st.sampled_from(sorted(COUNTS)),
    gigabytes=st.sampled_from([24, 40, 80, 141]),
    ranks=st.sampled_from([1, 2, 4]),
    checkpointing=st.sampled_from(["none", "selective", "full"]),
    capacity=st.sampled_from([4096, 16_384, 65_536]),
    collocated=st.booleans(),
)
def test_every_remedy_that_is_offered_fits(
    model: str, gigabytes: int, ranks: int, checkpointing: str, capacity: int, collocated: bool
) -> None:
    settings = recipe(
        mode="collocated" if collocated else "disaggregated",
        engine={"replicas": ranks},
        train={"ranks": ranks, "checkpointing": checkpointing, "capacity": capacity},
    )
    machine = Machine(model, gigabytes)
    if machine(settings).fits:
        return
    for remedy in find_remedies(settings, machine):
        assert machine(with_(settings, remedy)).fits


@examples(1)
@given(longest=st.integers(1, 40_000), context=st.integers(64, 40_000))
def test_a_slot_grows_to_what_the_engines_cache_reserves(longest: int, context: int) -> None:
    from transformers import LlamaConfig

    from arl.models.slot_cache import SlotCache

    torch = pytest.importorskip("torch")
    config = LlamaConfig(
        hidden_size=4, num_attention_heads=1, num_hidden_layers=1, head_dim=4, max_position_embeddings=context
    )
    cache = SlotCache(config, slots=1, dtype=torch.float32, device=torch.device("meta"))
    cache._reserve(longest)
    assert grown_capacity(longest, context) == cache._capacity
