"""Plan the memory of a run before it starts, and refuse what cannot fit.

    sizes of the model ─┐
    recipe             ─┼─► trainer rank: arl.train.rank_bytes      ─┐
    placement          ─┤   engine: arl.run.engine_memory            ├─► MemoryBudget of each kind of device
    hardware           ─┘   weights on their way: arl.sync.choose ───┘

    disaggregated   each trainer GPU, each engine GPU, the host
    collocated      each GPU while the trainer works, each GPU while engines generate, the host
    without GPUs    the host alone

What torch does not allocate is counted by the constants below. They are round numbers, and each is named in the plan.
"""

import os
from collections.abc import Sequence

from msgspec import Struct

from arl.config.recipe import Recipe
from arl.data.model_limits import ModelShape, model_config
from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.devices import free_memory
from arl.launch.placement import Placement, engine_share, merged
from arl.models.load import check_weights, empty_model
from arl.run.engine_memory import EngineBytes, engine_bytes, grown_capacity
from arl.run.memory_budget import MemoryBudget, MemoryPlan, Part
from arl.run.named_gpus import describe_gpus
from arl.sync.choose import buffer_place, held_versions, published_bytes
from arl.train.rank_bytes import ParameterCounts, RankBytes, Workload, rank_bytes
from arl.types import Transport

CONTEXT = 1_000_000_000  # CUDA's context of a process, with the code of its libraries and cuBLAS's workspace
NCCL = 500_000_000  # channels and buffers of one process's communicators
GAPS = 0.05  # of what is allocated: blocks of packs of varying size do not fill torch's segments
PROCESS_ON_GPU = 3_000_000_000  # host memory of a process with CUDA's libraries
PROCESS_ON_CPU = 500_000_000
CHECKPOINT_BYTES = 12  # a parameter: weights and moments, which all ranks of a host copy and write in the background
NUM_LARGEST = 3  # parts that a message names
REMEDIES = (
    "Set, in this order, train.checkpointing full, a smaller train.capacity, bfloat16 for train.dtype and "
    "engine.dtype, more GPUs (train.ranks, engine.tensor_parallel), fewer engine.slots; look at each with --dry-run"
)
WITHOUT_GPUS = ". This machine has no GPU; to plan for another one add --dry-run --gpus 8xH100"


class MemoryInputs(Struct, frozen=True):
    """Hold what a plan needs to know beside the recipe.

    Args:
        shape: of the model.
        parameters: of the model.
        context: of the model, tokens.
        longest: trajectory, tokens.
        kept: versions that engines may still load.
        device_bytes: memory of one GPU; None: not known.
        host_bytes: memory of the host that is free; None: not known.
        hardware: what it is, for messages.
    """

    shape: ModelShape
    parameters: ParameterCounts
    context: int
    longest: int
    kept: int
    device_bytes: int | None
    host_bytes: int | None
    hardware: str


class _Sides(Struct, frozen=True):
    """Hold the bytes of both sides."""

    rank: RankBytes
    engine: EngineBytes
    published_on_device: int  # of rank 0; with ipc, of every rank whose device an engine uses
    published_on_host: int  # of rank 0's process, and in shared memory
    cache: int  # bytes of one engine's cache on one device
    cache_tokens: int


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
    config = model_config(path)
    shape = ModelShape.of(config)
    width = recipe.engine.tensor_parallel
    if shape.heads % width:
        raise InputError(
            f"engine.tensor_parallel {width}: must divide the {shape.heads} attention heads of the model; use another"
        )
    node = merged(nodes)
    given = MemoryInputs(
        shape=shape,
        parameters=ParameterCounts.of(model),
        context=config.max_position_embeddings,
        longest=longest,
        kept=kept,
        device_bytes=min((one.device_bytes for one in nodes if one.device_bytes is not None), default=None),
        host_bytes=free_memory() if is_here and len(nodes) == 1 else None,
        hardware=describe_gpus(node) if placement.on_gpus else f"{node.name}, without GPUs",
    )
    memory = plan_memory(recipe, placement, transport, given)
    refuse_overfull(memory, hint="" if node.devices else WITHOUT_GPUS)
    return memory


def refuse_overfull(memory: MemoryPlan, hint: str = "") -> None:
    """Raise InputError, which ends with `hint`, if something does not fit; it names the largest parts."""
    if memory.fits:
        return
    reasons = []
    for budget in memory.budgets:
        if budget.available is not None and not budget.fits:
            largest = sorted(budget.parts, key=lambda part: part.bytes, reverse=True)[:NUM_LARGEST]
            parts = ", ".join(f"{part.name} ({part.owner}) {part.bytes / 1e9:.1f}" for part in largest)
            reasons.append(
                f"{budget.place} needs {budget.needed / 1e9:.1f} GB {budget.when}, and has "
                f"{budget.available / 1e9:.1f} GB; the largest parts in GB: {parts}"
            )
    raise InputError(f"memory on {memory.hardware}: {'; '.join(reasons)}. {REMEDIES}{hint}")


def plan_memory(recipe: Recipe, placement: Placement, transport: Transport, given: MemoryInputs) -> MemoryPlan:
    """Return the budgets of a run whose recipe has no `auto`."""
    sides = _sides(recipe, placement, transport, given)
    if not placement.on_gpus:
        budgets = [_host_without_gpus(placement, sides, given)]
    elif recipe.mode == "collocated":
        budgets = [*_shared_devices(recipe, sides, given), _host_of_gpus(recipe, placement, sides, given)]
    else:
        trainer = _trainer_device(recipe, sides, given)
        engine = _engine_device(sides, given)
        budgets = [trainer, engine, _host_of_gpus(recipe, placement, sides, given)]
    return MemoryPlan(
        budgets=tuple(budgets),
        hardware=given.hardware,
        rank_peak=sides.rank.peak + sides.published_on_device,
        rank_peaks=sides.rank.peaks,
        rank_resident=sides.rank.resident + sides.published_on_device,
        weights=sides.engine.weights,
        cache_tokens=sides.cache_tokens,
        longest=given.longest,
        slots=recipe.engine.slots,
    )


def workload(recipe: Recipe, longest: int, on_gpus: bool) -> Workload:
    """Return the most that one update may ask of a rank: every answer of full length behind the longest prompt.

    Args:
        longest: tokens of that prompt and its answer.
    """
    train = recipe.train
    answer = recipe.rollout.max_new_tokens
    size = recipe.rollout.group_size
    shares_prompts = train.packing == "balanced"
    of_group = longest - answer + size * answer if shares_prompts else size * longest
    tokens = recipe.rollout.problems_per_step * of_group // (train.minibatches * train.ranks)
    return Workload(
        tokens=min(max(tokens, longest), train.capacity),
        accumulates=tokens > train.capacity,
        device="cuda" if on_gpus else "cpu",
    )


def _sides(recipe: Recipe, placement: Placement, transport: Transport, given: MemoryInputs) -> _Sides:
    work = workload(recipe, given.longest, placement.on_gpus)
    total = given.parameters.total
    rank = rank_bytes(given.parameters, given.shape, recipe.train, work)
    free_of_rank = max((given.device_bytes or 0) - CONTEXT - rank.resident, 0) if placement.on_gpus else None
    version = published_bytes(total, recipe.train.dtype)
    place = "host" if free_of_rank is None else buffer_place(version, free_of_rank)
    held = held_versions(transport, given.kept, place, on_gpus=free_of_rank is not None)
    on_device = held.on_device * version
    free = max((given.device_bytes or 0) - CONTEXT, 0) if placement.on_gpus else None
    share = None  # the engine decides
    if recipe.mode == "collocated" and given.device_bytes is not None:
        share = engine_share(given.device_bytes, rank.resident + on_device)  # as if it starts before the rank
    engine = engine_bytes(recipe.engine, given.shape, total, free, share)
    cache = _cache(recipe, engine, given, free)
    return _Sides(
        rank=rank,
        engine=engine,
        published_on_device=on_device,
        published_on_host=(held.on_host + held.in_files) * version,
        cache=cache,
        cache_tokens=cache // engine.per_token,
    )


def _cache(recipe: Recipe, engine: EngineBytes, given: MemoryInputs, free: int | None) -> int:
    """Return the bytes of an engine's cache: all that SGLang leaves for it, or our own engine's slots, fully grown.

    A cache that could not hold one trajectory is counted as one that can, so that the budget shows what is missing.
    """
    least = engine.per_token * given.longest
    if recipe.engine.kind == "sglang" and free is not None:
        return max(free - engine.rest - engine.weights, least)
    return engine.per_token * grown_capacity(given.longest, given.context) * recipe.engine.slots


def _trainer_device(recipe: Recipe, sides: _Sides, given: MemoryInputs) -> MemoryBudget:
    instant, parts = _peak_of_rank(sides)
    return MemoryBudget(
        place="each trainer GPU",
        when=f"at its peak, {instant}",
        parts=(*parts, *_published("trainer", sides.published_on_device), *_overhead_of_rank(recipe, sides)),
        available=given.device_bytes,
    )


def _peak_of_rank(sides: _Sides) -> tuple[str, list[Part]]:
    """Return the instant of an update at which a rank allocates most, and what lives then."""
    peaks = sides.rank.peaks
    instant = max(peaks, key=lambda name: peaks[name])
    parts = [Part("trainer", name, size) for name, size in sides.rank.instants[instant].items() if size]
    return {"loss": "in the loss", "backward": "in the backward", "reduce": "in the reduction"}[instant], parts


def _overhead_of_rank(recipe: Recipe, sides: _Sides) -> list[Part]:
    allocated = sides.rank.peak + sides.published_on_device
    parts = [
        Part("trainer", f"gaps in torch's memory ({GAPS:.0%})", int(GAPS * allocated)),
        Part("trainer", "CUDA context", CONTEXT),
    ]
    if recipe.train.ranks > 1 or recipe.mode == "disaggregated":
        parts.append(Part("trainer", "NCCL", NCCL))
    return parts


def _engine_device(sides: _Sides, given: MemoryInputs) -> MemoryBudget:
    return MemoryBudget(
        place="each engine GPU",
        when="while it generates",
        parts=(*_engine_parts(sides), Part("engine", "CUDA context", CONTEXT)),
        available=given.device_bytes,
    )


def _engine_parts(sides: _Sides, beside: int = 0) -> list[Part]:
    """Return the parts of an engine.

    Args:
        beside: bytes of others that were allocated after its start, and so out of what it leaves.
    """
    parts = [Part("engine", "weights", sides.engine.weights), Part("engine", "KV cache", sides.cache)]
    own = sides.engine.rest - beside
    if own > 0:
        parts.append(Part("engine", "graphs and activations", own))
    return parts


def _shared_devices(recipe: Recipe, sides: _Sides, given: MemoryInputs) -> list[MemoryBudget]:
    """Return the budgets of both turns: the side that is not at work keeps what it cannot release."""
    instant, parts = _peak_of_rank(sides)
    asleep = [Part("engine", "CUDA context and graphs", CONTEXT + sides.engine.graphs)]
    if recipe.engine.kind != "sglang":
        asleep.append(Part("engine", "weights, which our own engine keeps", sides.engine.weights))
    trains = MemoryBudget(
        place="each GPU",
        when=f"while the trainer works, at its peak {instant}",
        parts=(*parts, *_published("trainer", sides.published_on_device), *_overhead_of_rank(recipe, sides), *asleep),
        available=given.device_bytes,
    )
    kept = [
        Part("trainer", "weights and AdamW's moments", sides.rank.resident),
        *_published("trainer", sides.published_on_device),
        Part("trainer", "CUDA context", CONTEXT),
    ]
    beside = sum(part.bytes for part in kept)
    generates = MemoryBudget(
        place="each GPU",
        when="while engines generate",
        parts=(*_engine_parts(sides, beside), Part("engine", "CUDA context", CONTEXT), *kept),
        available=given.device_bytes,
    )
    return [trains, generates]


def _host_of_gpus(recipe: Recipe, placement: Placement, sides: _Sides, given: MemoryInputs) -> MemoryBudget:
    beside = 0 if placement.evaluation is None else 1
    processes = 1 + len(placement.ranks) + len(placement.engines) * recipe.engine.tensor_parallel + beside
    return MemoryBudget(
        place="the host",
        when="while a checkpoint is written",
        parts=(
            *_published("host", sides.published_on_host),
            Part("host", "copy for a checkpoint", CHECKPOINT_BYTES * given.parameters.total),
            Part("host", f"{processes} processes", PROCESS_ON_GPU * processes),
        ),
        available=given.host_bytes,
    )


def _host_without_gpus(placement: Placement, sides: _Sides, given: MemoryInputs) -> MemoryBudget:
    """Return what both sides and everything between them take of the host's memory."""
    num_ranks = len(placement.ranks)
    num_engines = len(placement.engines) + (0 if placement.evaluation is None else 1)
    instant, of_rank = _peak_of_rank(sides)
    engine = [Part(part.owner, part.name, part.bytes * num_engines) for part in _engine_parts(sides)]
    return MemoryBudget(
        place="the host",
        when=f"with every rank at its peak, {instant}, beside all engines",
        parts=(
            *(Part(part.owner, part.name, part.bytes * num_ranks) for part in of_rank),
            *engine,
            *_published("host", sides.published_on_host),
            Part("host", "copy for a checkpoint", CHECKPOINT_BYTES * given.parameters.total),
            Part("host", "processes", PROCESS_ON_CPU * (1 + num_ranks + num_engines)),
        ),
        available=given.host_bytes,
    )


def _published(owner: str, size: int) -> list[Part]:
    return [Part(owner, "published weights", size)] if size else []
