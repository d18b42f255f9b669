"""Plan the memory of a run before it starts, and refuse what cannot fit.

    sizes of the model ─┐
    recipe             ─┼─► trainer rank: arl.train.rank_bytes       ─┐
    placement          ─┤   engine: weights and cache                 ├─► MemoryBudget of each kind of device
    hardware           ─┘   weights on their way: arl.sync.choose    ─┘

    disaggregated   each trainer GPU, each engine GPU
    collocated      each GPU while the trainer works, each GPU while engines generate
    without GPUs    the host

What torch does not allocate is counted by the constants below. SGLang gives a share of the memory that is free at its
start to weights and cache. In our own engine every slot grows with the longest open request, to the next power of two.
"""

import os
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from arl.config.recipe import Recipe
from arl.data.model_limits import ModelShape, model_config
from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.devices import free_memory
from arl.launch.placement import Placement, engine_share
from arl.models.load import check_weights, empty_model
from arl.models.lora import inject
from arl.sync.buckets import ITEM_BYTES
from arl.sync.choose import buffer_place, held_versions, published_bytes
from arl.train.critic import give_value_head
from arl.train.rank_bytes import FLOAT32, MOMENTS_BYTES, ParameterCounts, RankBytes, rank_bytes, with_critic, workload
from arl.types import Transport

CONTEXT = 1_000_000_000  # CUDA's context of a process, with the code of its libraries and cuBLAS's workspace
NCCL = 500_000_000  # channels and buffers of one process's communicators
GAPS = 0.05  # of what is allocated: blocks of packs of varying size do not fill torch's segments
# What stays of SGLang while it sleeps, beside its context: graphs of decoding and prefill, workspaces of its kernels.
SGLANG_GRAPHS = 2_000_000_000
SGLANG_SHARE = 0.82  # of free memory, for weights and cache: about what SGLang 0.5.20 chooses on a GPU of 80 GB
PROCESS_ON_CPU = 500_000_000
NUM_LARGEST = 3  # parts that a message names
MIN_CAPACITY = 64  # tokens of a slot: see arl.models.slot_cache
REMEDIES = (
    "Set, in this order, train.checkpointing full, a smaller train.capacity, bfloat16 for train.dtype and "
    "engine.dtype, more GPUs (train.ranks, engine.tensor_parallel), fewer engine.slots; look at each with --dry-run"
)
WITHOUT_GPUS = ". This machine has no GPU; to plan for another one add --dry-run --gpus 8xH100"


class MemoryBudget(Struct, frozen=True):
    """Compare what one memory must hold with what it has."""

    place: str  # such as "each trainer GPU"
    when: str  # the instant at which it holds most
    parts: dict[str, int]  # bytes that live there then, by name
    available: int | None  # bytes; None: not known, so nothing is refused

    @property
    def needed(self) -> int:
        """Return the bytes of all parts."""
        return sum(self.parts.values())


class MemoryPlan(Struct, frozen=True):
    """Hold the budgets of a run, and what follows for its engines."""

    budgets: list[MemoryBudget]
    engine_share: float | None  # of a GPU's free memory, for an engine's weights and cache; None: SGLang chooses
    cache: str  # what the cache of one engine holds

    def lines(self) -> Iterator[str]:
        """Yield a line for each budget, then what they mean for requests."""
        for budget in self.budgets:
            has = "" if budget.available is None else f" of {budget.available / 1e9:.1f}"
            yield f"{budget.place} {budget.when}: {budget.needed / 1e9:.1f}{has} GB: {in_gigabytes(budget.parts)}"
        yield self.cache


class MemoryInputs(Struct, frozen=True):
    """Hold what a plan needs to know beside the recipe."""

    shape: ModelShape
    parameters: ParameterCounts
    context: int  # of the model, tokens
    longest: int  # trajectory, tokens
    kept: int  # versions that engines may still load
    device_bytes: int | None  # memory of one GPU; None: not known
    host_bytes: int | None  # memory of the host that is free; None: not known
    critic: tuple[ParameterCounts, ModelShape] | None = None
    frozen: tuple[ParameterCounts, ...] = ()  # of models beside the policy that are not the run's own
    teachers: tuple[ParameterCounts, ...] = ()  # of those that are engines


def plan_recipe(
    recipe: Recipe,
    nodes: Sequence[Node],
    placement: Placement,
    transport: Transport,
    longest: int,
    kept: int,
    is_here: bool,
) -> MemoryPlan:
    """Return the plan of a recipe with a model.path and without `auto`.

    Args:
        nodes: of one kind; the plan is of the GPUs that have the least memory.
        longest: trajectory, tokens.
        kept: versions that engines may still load.
        is_here: the nodes are there. The memory of a host is known only if this machine is the only node.

    Raises:
        InputError: it does not fit; with the largest parts.
        DataError: there is no model, or not one that arl supports.
    """
    path = str(recipe.model.path)
    model = empty_model(path)
    if os.path.isdir(path):  # otherwise it is downloaded when the run begins
        check_weights(model, path)
    if recipe.train.lora is not None:
        inject(model, recipe.train.lora)
    config = model_config(path)
    shape = ModelShape.of(config)
    width = recipe.engine.tensor_parallel
    if shape.heads % width:
        raise InputError(
            f"engine.tensor_parallel {width}: must divide the {shape.heads} attention heads of the model; use another"
        )
    given = MemoryInputs(
        shape=shape,
        parameters=ParameterCounts.of(model),
        context=config.max_position_embeddings,
        longest=longest,
        kept=kept,
        device_bytes=min((one.device_bytes for one in nodes if one.device_bytes is not None), default=None),
        host_bytes=free_memory() if is_here and len(nodes) == 1 else None,
        critic=_critic_sizes(recipe),
        frozen=tuple(ParameterCounts.of(empty_model(one)) for one in _paths_of_frozen(recipe)),
        teachers=tuple(ParameterCounts.of(empty_model(one)) for one in _paths_of_teachers(recipe, "engine")),
    )
    memory = plan_memory(recipe, placement, transport, given)
    num_devices = sum(len(node.devices) for node in nodes)
    name = nodes[0].name if len(nodes) == 1 else f"{len(nodes)} nodes"
    gpus = f"{num_devices} {nodes[0].device_name} ({nodes[0].planned_by or name})"
    hardware = gpus if placement.on_gpus else f"{name}, without GPUs"
    refuse_overfull(memory, hardware, hint="" if num_devices else WITHOUT_GPUS)
    return memory


def _paths_of_teachers(recipe: Recipe, place: str) -> list[str]:
    teacher = recipe.objective.teacher
    return teacher.paths if teacher is not None and teacher.place == place else []


def _paths_of_frozen(recipe: Recipe) -> list[str]:
    reference = recipe.objective.active_reference
    elsewhere = [reference.path] if reference is not None and reference.is_elsewhere else []
    return elsewhere + _paths_of_teachers(recipe, "trainer")


def _critic_sizes(recipe: Recipe) -> tuple[ParameterCounts, ModelShape] | None:
    if recipe.train.critic is None:
        return None
    model = empty_model(recipe.train.critic.path or str(recipe.model.path))
    give_value_head(model)
    return ParameterCounts.of(model), msgspec.structs.replace(ModelShape.of(model.config), vocab_size=1)


def refuse_overfull(memory: MemoryPlan, hardware: str, hint: str = "") -> None:
    """Raise InputError, which ends with `hint`, if something does not fit; it names the largest parts."""
    reasons = []
    for budget in memory.budgets:
        if budget.available is not None and budget.needed > budget.available:
            largest = sorted(budget.parts.items(), key=lambda part: part[1], reverse=True)[:NUM_LARGEST]
            reasons.append(
                f"{budget.place} needs {budget.needed / 1e9:.1f} GB {budget.when}, and has "
                f"{budget.available / 1e9:.1f} GB; the largest parts in GB: {in_gigabytes(dict(largest))}"
            )
    if reasons:
        raise InputError(f"memory on {hardware}: {'; '.join(reasons)}. {REMEDIES}{hint}")


def in_gigabytes(parts: dict[str, int]) -> str:
    """Write each part that is not 0 with its size."""
    return ", ".join(f"{name} {size / 1e9:.1f}" for name, size in parts.items() if size)


def plan_memory(recipe: Recipe, placement: Placement, transport: Transport, given: MemoryInputs) -> MemoryPlan:
    """Return the budgets of a run whose recipe has no `auto`."""
    on_gpus = placement.on_gpus
    device_bytes = given.device_bytes or 0
    free = max(device_bytes - CONTEXT, 0)  # for an engine that starts
    total = given.parameters.total
    critic = 0 if given.critic is None else given.critic[0].total
    rank = _rank(recipe, given, on_gpus)
    version = published_bytes(total, recipe.train.dtype)
    place = buffer_place(version, max(free - rank.resident, 0)) if on_gpus else "host"
    held = held_versions(transport, given.kept, place, on_gpus)
    on_device = held.on_device * version  # of rank 0; with ipc, of every rank whose device an engine uses
    resident = rank.resident + on_device

    share = None
    taken = int(SGLANG_SHARE * free)
    if recipe.mode == "collocated" and given.device_bytes is not None:
        used = 2 * CONTEXT + rank.resident
        share = engine_share(device_bytes, used, on_device)
        taken = int(share * max(device_bytes - used, 0))
    generating, cache = _engine(recipe, given, taken if on_gpus else None)
    budgets = []
    if on_gpus:
        training = rank.parts | {
            "a frozen model's gathered weights": _gathered_frozen(recipe, given),
            "published weights": on_device,
            f"gaps in torch's memory ({GAPS:.0%})": int(GAPS * (rank.peak + on_device)),
            "trainer's CUDA context": CONTEXT,
            "NCCL": NCCL,
        }
        graphs = SGLANG_GRAPHS if recipe.engine.kind == "sglang" else 0
        generating["engine's CUDA context and graphs"] = CONTEXT + graphs
        trainer = "each trainer GPU"
        server = "each engine GPU"
        if recipe.mode == "collocated":
            trainer = server = "each GPU"
            training["engine's CUDA context and graphs"] = CONTEXT + graphs
            if recipe.engine.kind != "sglang":
                training["engine's weights, which it keeps"] = generating["engine's weights"]
            generating |= {"trainer's weights and AdamW's moments": resident, "trainer's CUDA context": CONTEXT}
        budgets.append(MemoryBudget(trainer, f"at its peak, {rank.when}", training, given.device_bytes))
        budgets.append(MemoryBudget(server, "while it generates", generating, given.device_bytes))
        if given.teachers:
            scoring = {"teacher's weights": max(_served(recipe, given)), "CUDA context and graphs": CONTEXT + graphs}
            budgets.append(MemoryBudget("each teacher GPU", "while it scores", scoring, given.device_bytes))
    else:
        servers = len(placement.engines) + (0 if placement.evaluation is None else 1)
        engines = servers * recipe.engine.tensor_parallel  # each worker is a process with its part of weights and cache
        parts = {name: size * len(placement.ranks) for name, size in rank.parts.items()}
        parts |= {name: size * engines for name, size in generating.items()}
        parts["published weights"] = (held.on_host + held.in_files) * version
        # All ranks of a host copy weights and moments, and write them in the background.
        moments = MOMENTS_BYTES * (given.parameters.adapters or total)
        parts["copy for a checkpoint"] = FLOAT32 * total + moments + (FLOAT32 + MOMENTS_BYTES) * critic
        parts["frozen models"] = _frozen(recipe, given, version)
        parts["teachers' weights"] = sum(_served(recipe, given)) * recipe.engine.tensor_parallel
        parts["processes"] = PROCESS_ON_CPU * (1 + len(placement.ranks) + engines + len(given.teachers))
        when = f"with every rank at its peak, {rank.when}, beside all engines"
        budgets.append(MemoryBudget("the host", when, parts, given.host_bytes))
    return MemoryPlan(budgets, share, cache)


def _rank(recipe: Recipe, given: MemoryInputs, on_gpus: bool) -> RankBytes:
    """Return what a rank holds, with its critic."""
    work = workload(recipe, given.longest, on_gpus)
    rank = rank_bytes(given.parameters, given.shape, recipe.train, work)
    if given.critic is None:
        return rank
    return with_critic(rank, rank_bytes(*given.critic, recipe.train, work))


def _own_frozen(recipe: Recipe) -> int:
    """Return how many frozen models that the run itself makes or begins with lie beside the policy."""
    reference = recipe.objective.active_reference
    return int(reference is not None and not reference.is_elsewhere) + int(recipe.needs_sampling_versions)


def _frozen(recipe: Recipe, given: MemoryInputs, version: int) -> int:
    """Return the bytes of frozen models and kept versions in host memory; `version` is those of one of the policy's."""
    others = sum(published_bytes(one.total, recipe.train.dtype) for one in given.frozen)
    kept = given.kept if recipe.needs_sampling_versions else 0
    reference = recipe.objective.active_reference
    average = FLOAT32 * given.parameters.total if reference is not None and reference.decay is not None else 0
    return (_own_frozen(recipe) + kept) * version + others + average


def _gathered_frozen(recipe: Recipe, given: MemoryInputs) -> int:
    """Return the bytes of what a GPU gathers of the largest frozen model: the root, and blocks under way."""
    models = [given.parameters] * bool(_own_frozen(recipe)) + list(given.frozen)
    return ITEM_BYTES[recipe.train.dtype] * max((one.root + 3 * one.largest_block for one in models), default=0)


def _served(recipe: Recipe, given: MemoryInputs) -> list[int]:
    """Return the bytes of the weights of each teacher that is an engine, on each of its devices."""
    engine = recipe.engine
    return [ITEM_BYTES[engine.dtype] * one.total // engine.tensor_parallel for one in given.teachers]


def _engine(recipe: Recipe, given: MemoryInputs, share: int | None) -> tuple[dict[str, int], str]:
    """Return the bytes of one engine on each of its devices, and what its cache holds, in words.

    Args:
        share: bytes that SGLang may take; None: it computes on a CPU.
    """
    engine = recipe.engine
    shape = given.shape
    item = ITEM_BYTES[engine.dtype]
    kv_heads = max(shape.kv_heads // engine.tensor_parallel, 1)
    token = 2 * item * shape.layers * kv_heads * shape.head_dim
    weights = item * given.parameters.total // engine.tensor_parallel
    if engine.kind == "sglang" and share is not None:
        # One that could not hold a trajectory is counted as one that can, so that the budget shows what is missing.
        cache = max(share - weights, token * given.longest)
    else:
        power = max(1 << (given.longest - 1).bit_length(), MIN_CAPACITY)
        cache = token * max(min(power, given.context), given.longest) * engine.slots
    tokens = cache // token
    fitting = tokens // given.longest
    waiting = "" if fitting >= engine.slots else "; more of them wait, and are computed again"
    return {"engine's weights": weights, "KV cache": cache}, (
        f"an engine's cache holds {tokens:,} tokens, {fitting:,} requests of the longest {given.longest:,}; "
        f"engine.slots {engine.slots:,}{waiting}"
    )
