"""Plan the memory of a run before it starts, and refuse what cannot fit.

    sizes of the model ─┐
    recipe             ─┼─► trainer rank: arl.train.rank_bytes         ─┐
    placement          ─┤   engine: engine_bytes                        ├─► MemoryBudget of each kind of device
    hardware           ─┘   weights on their way: published_versions   ─┘

    disaggregated   each trainer GPU, each engine GPU, the host
    collocated      each GPU while the trainer works, each GPU while engines generate, the host
    without GPUs    the host alone

What torch does not allocate is counted by the constants below. SGLang gives a share of the memory that is free at its
start to weights and cache: arg_groups/memory_hook.py and kv_cache_configurator.py of SGLang 0.5.20. In our own engine
every slot grows with the longest open request, to the next power of two.
"""

import argparse
import os
from collections.abc import Iterator, Sequence

from msgspec import Struct

from arl.config.engine_section import EngineConfig
from arl.config.recipe import Recipe
from arl.data.model_limits import ModelShape, model_config
from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.devices import free_memory
from arl.launch.placement import Placement, engine_share, merged
from arl.models.load import check_weights, empty_model
from arl.run.machines import describe_gpus
from arl.sync.buckets import ITEM_BYTES
from arl.sync.choose import buffer_place, held_versions, published_bytes
from arl.train.rank_bytes import ParameterCounts, rank_bytes, workload
from arl.types import Transport

CONTEXT = 1_000_000_000  # CUDA's context of a process, with the code of its libraries and cuBLAS's workspace
NCCL = 500_000_000  # channels and buffers of one process's communicators
GAPS = 0.05  # of what is allocated: blocks of packs of varying size do not fill torch's segments
PROCESS_ON_GPU = 3_000_000_000  # host memory of a process with CUDA's libraries
PROCESS_ON_CPU = 500_000_000
CHECKPOINT_BYTES = 12  # a parameter: weights and moments, which all ranks of a host copy and write in the background
FULL = 0.9  # of a trainer GPU; beyond that an error of the plan of a tenth may end the run
NUM_LARGEST = 3  # parts that a message names
REMEDIES = (
    "Set, in this order, train.checkpointing full, a smaller train.capacity, bfloat16 for train.dtype and "
    "engine.dtype, more GPUs (train.ranks, engine.tensor_parallel), fewer engine.slots; look at each with --dry-run"
)
WITHOUT_GPUS = ". This machine has no GPU; to plan for another one add --dry-run --gpus 8xH100"

MEBIBYTE = 1 << 20
MIN_CAPACITY = 64  # tokens of a slot: see arl.models.slot_cache
# Memory of a device in MiB, below which SGLang prefills so many tokens at once; and without a limit.
CHUNKS = {20 * 1024: 2048, 60 * 1024: 4096, 160 * 1024: 8192}
MAX_CHUNK = 16_384
PREFILL_GRAPHS = 60 * 8  # MiB: SGLang captures about 60 lengths, and counts 8 MiB for each
DECODE_GRAPH = 2  # MiB for each request of the largest captured batch
LARGE_DEVICE = 60 * 1024  # MiB, beyond which SGLang leaves at least 10 GiB
MIN_REST = 10 * 1024


class Part(Struct, frozen=True):
    """Name bytes that live in one memory at the instant for which it is planned."""

    owner: str  # trainer, engine or host: whose settings change it
    name: str
    bytes: int


class MemoryBudget(Struct, frozen=True):
    """Compare what one memory must hold with what it has."""

    place: str  # such as "each trainer GPU"
    when: str  # the instant at which it holds most
    parts: list[Part]
    available: int | None  # bytes; None: not known, so nothing is refused

    @property
    def needed(self) -> int:
        """Return the bytes of all parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def fits(self) -> bool:
        """Return whether all parts have space, as far as that is known."""
        return self.available is None or self.needed <= self.available


class MemoryPlan(Struct, frozen=True):
    """Hold the budgets of a run, and what follows for its engines and for its measurements."""

    budgets: list[MemoryBudget]
    hardware: str  # what it was planned for
    rank_peaks: dict[str, int]  # bytes that torch allocates on one trainer rank's device, at each instant of an update
    rank_resident: int  # that stay between two steps, while engines generate
    cache_tokens: int  # that the caches of one engine hold
    longest: int  # tokens of the longest trajectory
    slots: int  # of one engine

    @property
    def rank_peak(self) -> int:
        """Return the most that torch allocates on the device of one trainer rank."""
        return max(self.rank_peaks.values())

    def lines(self) -> Iterator[str]:
        """Yield a line for each budget, then what they mean for an update and for requests."""
        for budget in self.budgets:
            parts = ", ".join(f"{part.name} {part.bytes / 1e9:.1f}" for part in budget.parts)
            has = "" if budget.available is None else f" of {budget.available / 1e9:.1f}"
            yield f"{budget.place} {budget.when}: {budget.needed / 1e9:.1f}{has} GB: {parts}"
        peaks = ", ".join(f"{instant} {size / 1e9:.1f}" for instant, size in self.rank_peaks.items())
        yield f"torch allocates on a rank, in GB: {peaks}, between two steps {self.rank_resident / 1e9:.1f}"
        num_full = self.cache_tokens // self.longest
        waiting = "" if num_full >= self.slots else "; more of them wait, and are computed again"
        yield (
            f"an engine's cache holds {self.cache_tokens:,} tokens, {num_full:,} requests of the longest "
            f"{self.longest:,}; engine.slots {self.slots:,}{waiting}"
        )

    def notes(self) -> Iterator[str]:
        """Yield a note if a run on GPUs plans to fill a trainer GPU."""
        trainer = self.budgets[0]
        if trainer.available is not None and trainer.needed > FULL * trainer.available:
            yield (
                f"{trainer.place} is planned to {trainer.needed / trainer.available:.0%} of its memory, "
                f"{trainer.needed / 1e9:.1f} of {trainer.available / 1e9:.1f} GB, and a plan can be a tenth too low "
                "(docs/memory.md)"
            )


class MemoryInputs(Struct, frozen=True):
    """Hold what a plan needs to know beside the recipe."""

    shape: ModelShape
    parameters: ParameterCounts
    context: int  # of the model, tokens
    longest: int  # trajectory, tokens
    kept: int  # versions that engines may still load
    device_bytes: int | None  # memory of one GPU; None: not known
    host_bytes: int | None  # memory of the host that is free; None: not known
    hardware: str  # what it is, for messages


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
    reasons = []
    for budget in memory.budgets:
        if budget.available is not None and not budget.fits:
            largest = sorted(budget.parts, key=lambda part: part.bytes, reverse=True)[:NUM_LARGEST]
            parts = ", ".join(f"{part.name} ({part.owner}) {part.bytes / 1e9:.1f}" for part in largest)
            reasons.append(
                f"{budget.place} needs {budget.needed / 1e9:.1f} GB {budget.when}, and has "
                f"{budget.available / 1e9:.1f} GB; the largest parts in GB: {parts}"
            )
    if reasons:
        raise InputError(f"memory on {memory.hardware}: {'; '.join(reasons)}. {REMEDIES}{hint}")


def plan_memory(recipe: Recipe, placement: Placement, transport: Transport, given: MemoryInputs) -> MemoryPlan:
    """Return the budgets of a run whose recipe has no `auto`."""
    device_bytes = given.device_bytes or 0
    on_gpus = placement.on_gpus
    total = given.parameters.total
    rank = rank_bytes(given.parameters, given.shape, recipe.train, workload(recipe, given.longest, on_gpus))
    version = published_bytes(total, recipe.train.dtype)
    place = buffer_place(version, max(device_bytes - CONTEXT - rank.resident, 0)) if on_gpus else "host"
    held = held_versions(transport, given.kept, place, on_gpus)
    on_device = held.on_device * version  # of rank 0; with ipc, of every rank whose device an engine uses
    on_host = (held.on_host + held.in_files) * version  # of rank 0's process, and in shared memory
    share = None  # the engine decides
    if recipe.mode == "collocated" and given.device_bytes is not None:
        share = engine_share(device_bytes, rank.resident + on_device)  # as if it starts before the rank
    free = max(device_bytes - CONTEXT, 0) if on_gpus else None
    engine = engine_bytes(recipe.engine, given.shape, total, free, share)
    cache = _cache(recipe, engine, given, free)

    instant = max(rank.peaks, key=lambda name: rank.peaks[name])
    when = {"loss": "in the loss", "backward": "in the backward", "reduce": "in the reduction"}[instant]
    training = [Part("trainer", name, size) for name, size in rank.instants[instant].items() if size]
    generating = [Part("engine", "weights", engine.weights), Part("engine", "KV cache", cache)]
    published = [Part("trainer", "published weights", on_device)] if on_device else []
    in_files = [Part("host", "published weights", on_host)] if on_host else []
    in_files.append(Part("host", "copy for a checkpoint", CHECKPOINT_BYTES * total))
    context = Part("engine", "CUDA context", CONTEXT)

    def device(place: str, when: str, parts: list[Part]) -> MemoryBudget:
        return MemoryBudget(place, when, parts, given.device_bytes)

    if not on_gpus:
        budgets = [_host_without_gpus(placement, when, training, generating, in_files, given)]
    elif recipe.mode == "collocated":
        training += [*published, *_overhead_of_rank(recipe, rank.peak + on_device)]
        resident = Part("trainer", "weights and AdamW's moments", rank.resident)
        kept = [resident, *published, Part("trainer", "CUDA context", CONTEXT)]
        generating += _graphs_and_activations(engine.rest - sum(part.bytes for part in kept))
        budgets = [
            device("each GPU", f"while the trainer works, at its peak {when}", training + _asleep(recipe, engine)),
            device("each GPU", "while engines generate", [*generating, context, *kept]),
            _host_of_gpus(recipe, placement, in_files, given),
        ]
    else:
        training += [*published, *_overhead_of_rank(recipe, rank.peak + on_device)]
        generating += _graphs_and_activations(engine.rest)
        budgets = [
            device("each trainer GPU", f"at its peak, {when}", training),
            device("each engine GPU", "while it generates", [*generating, context]),
            _host_of_gpus(recipe, placement, in_files, given),
        ]
    return MemoryPlan(
        budgets=budgets,
        hardware=given.hardware,
        rank_peaks={name: size + on_device for name, size in rank.peaks.items()},
        rank_resident=rank.resident + on_device,
        cache_tokens=cache // engine.per_token,
        longest=given.longest,
        slots=recipe.engine.slots,
    )


def _graphs_and_activations(size: int) -> list[Part]:
    return [Part("engine", "graphs and activations", size)] if size > 0 else []


def _overhead_of_rank(recipe: Recipe, allocated: int) -> list[Part]:
    parts = [
        Part("trainer", f"gaps in torch's memory ({GAPS:.0%})", int(GAPS * allocated)),
        Part("trainer", "CUDA context", CONTEXT),
    ]
    if recipe.train.ranks > 1 or recipe.mode == "disaggregated":
        parts.append(Part("trainer", "NCCL", NCCL))
    return parts


def _asleep(recipe: Recipe, engine: "EngineBytes") -> list[Part]:
    """Return what an engine cannot release while the trainer works."""
    parts = [Part("engine", "CUDA context and graphs", CONTEXT + engine.graphs)]
    if recipe.engine.kind != "sglang":
        parts.append(Part("engine", "weights, which our own engine keeps", engine.weights))
    return parts


def _host_of_gpus(recipe: Recipe, placement: Placement, in_files: list[Part], given: MemoryInputs) -> MemoryBudget:
    beside = 0 if placement.evaluation is None else 1
    processes = 1 + len(placement.ranks) + len(placement.engines) * recipe.engine.tensor_parallel + beside
    parts = [*in_files, Part("host", f"{processes} processes", PROCESS_ON_GPU * processes)]
    return MemoryBudget("the host", "while a checkpoint is written", parts, given.host_bytes)


def _host_without_gpus(
    placement: Placement,
    when: str,
    training: list[Part],
    generating: list[Part],
    in_files: list[Part],
    given: MemoryInputs,
) -> MemoryBudget:
    """Return what both sides and everything between them take of the host's memory."""
    num_ranks = len(placement.ranks)
    num_engines = len(placement.engines) + (0 if placement.evaluation is None else 1)
    parts = [
        *(Part(part.owner, part.name, part.bytes * num_ranks) for part in training),
        *(Part(part.owner, part.name, part.bytes * num_engines) for part in generating),
        *in_files,
        Part("host", "processes", PROCESS_ON_CPU * (1 + num_ranks + num_engines)),
    ]
    return MemoryBudget(
        place="the host",
        when=f"with every rank at its peak, {when}, beside all engines",
        parts=parts,
        available=given.host_bytes,
    )


class EngineBytes(Struct, frozen=True):
    """Hold what one engine replica takes of each of its devices."""

    weights: int
    per_token: int  # of its cache
    rest: int  # of what was free at its start: graphs, activations, and what is allocated later beside it
    graphs: int  # the part of the rest that stays when it releases its memory


def engine_bytes(
    config: EngineConfig, shape: ModelShape, parameters: int, free: int | None, share: float | None
) -> EngineBytes:
    """Return the bytes of one engine for a model of `parameters`; `config.dtype` is not auto.

    Args:
        free: bytes of the device when it starts; None: it computes on the CPU.
        share: of them that weights and cache may take, unless `config.args` say it; None: the engine decides.
    """
    item = ITEM_BYTES[config.dtype]
    heads = max(shape.kv_heads // config.tensor_parallel, 1)
    is_sglang = config.kind == "sglang" and free is not None
    graphs = (DECODE_GRAPH * config.slots + PREFILL_GRAPHS) * MEBIBYTE
    return EngineBytes(
        weights=item * parameters // config.tensor_parallel,
        per_token=2 * item * shape.layers * heads * shape.head_dim,
        rest=_sglang_rest(config, free, share, graphs) if is_sglang and free is not None else 0,
        graphs=graphs if is_sglang else 0,
    )


def _cache(recipe: Recipe, engine: EngineBytes, given: MemoryInputs, free: int | None) -> int:
    """Return the bytes of an engine's cache: all that SGLang leaves for it, or our own engine's slots, fully grown.

    A cache that could not hold one trajectory is counted as one that can, so that the budget shows what is missing.
    """
    if recipe.engine.kind == "sglang" and free is not None:
        return max(free - engine.rest - engine.weights, engine.per_token * given.longest)
    return engine.per_token * grown_capacity(given.longest, given.context) * recipe.engine.slots


def grown_capacity(longest: int, context: int) -> int:
    """Return the tokens of each slot of our own engine, once a request of `longest` tokens was open.

    >>> grown_capacity(1100, 4096), grown_capacity(1100, 1500)
    (2048, 1500)
    """
    capacity = MIN_CAPACITY
    while capacity < longest:
        capacity *= 2
    return max(min(capacity, context), longest)


def _sglang_rest(config: EngineConfig, free: int, share: float | None, graphs: int) -> int:
    """Return what SGLang leaves of `free`: of its share, which engine.args give first, or as it would choose."""
    given = given_share(config.args)
    chosen = share if given is None else given
    if chosen is not None:
        return int(free * (1 - chosen))
    mebibytes = free / MEBIBYTE
    chunk = next((chunk for limit, chunk in CHUNKS.items() if mebibytes < limit), MAX_CHUNK)
    rest = 512 + 1.5 * chunk + config.tensor_parallel * 128 + graphs / MEBIBYTE
    if mebibytes > LARGE_DEVICE:
        rest = max(rest, MIN_REST)
    return int(rest * MEBIBYTE)


def given_share(args: Sequence[str]) -> float | None:
    """Return the value of `--mem-fraction-static` among SGLang's flags; None: not given, or not a number."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--mem-fraction-static", type=float)
    try:
        known, _ = parser.parse_known_args(list(args))
    except argparse.ArgumentError:  # SGLang refuses it with a better message
        return None
    share: float | None = known.mem_fraction_static
    return share
