"""Write a plan of memory as the lines that `arl train --dry-run` prints. Torch-free."""

from collections.abc import Iterator

from arl.config.recipe import Recipe
from arl.run.memory.budget import MemoryBudget, MemoryPlan

FULL = 0.9  # of a trainer GPU; beyond that an error of the plan of a tenth may end the run


def memory_lines(memory: MemoryPlan, recipe: Recipe) -> Iterator[str]:
    """Yield a line for each budget, then what they mean for an update and for requests."""
    spared = _spared(memory, recipe)
    yield _budget(memory.budgets[0], spared)
    for budget in memory.budgets[1:]:
        yield _budget(budget)
    yield _instants(memory, recipe)
    yield _requests(memory)
    if memory.full_requests < memory.slots:
        yield _advice(memory, recipe)


def published_on_device(memory: MemoryPlan) -> int:
    """Return the bytes of published weights on a trainer GPU: rank 0's with a broadcast, every rank's with ipc."""
    return memory.rank_peak - max(memory.rank_peaks.values())


def tight_device(memory: MemoryPlan, recipe: Recipe) -> Iterator[str]:
    """Yield a note if a run on GPUs plans to fill a trainer GPU, with a setting that leaves more room."""
    trainer = memory.budgets[0]
    if trainer.available is None or trainer.needed <= FULL * trainer.available:
        return
    share = trainer.needed / trainer.available
    remedy = _roomier(memory, recipe)
    yield (
        f"{trainer.place} is planned to {share:.0%} of its memory, {trainer.needed / 1e9:.1f} of "
        f"{trainer.available / 1e9:.1f} GB, and a plan can be a tenth too low (docs/memory.md)"
        + (f"; {remedy} leaves more room" if remedy else "")
    )


def _roomier(memory: MemoryPlan, recipe: Recipe) -> str | None:
    """Return a setting that takes less of a trainer GPU, the cheapest first; None: all of them are made."""
    train = recipe.train
    if recipe.mode == "disaggregated" and published_on_device(memory):
        return "sync.buffers host"
    if train.checkpointing == "none" and not train.compile:
        return "train.checkpointing selective"
    if train.checkpointing != "full":
        return "train.checkpointing full"
    if not train.reshard and train.ranks > 1:
        return "train.reshard true"
    if train.capacity > memory.longest:
        return f"train.capacity below {train.capacity:,}, down to the longest trajectory of {memory.longest:,} tokens,"
    return None


def _spared(memory: MemoryPlan, recipe: Recipe) -> int:
    """Return the bytes that rank 0's GPU holds more than another rank's."""
    if recipe.mode != "disaggregated" or recipe.train.ranks == 1:
        return 0
    return published_on_device(memory)


def _budget(budget: MemoryBudget, spared: int = 0) -> str:
    parts = ", ".join(f"{part.name} {part.bytes / 1e9:.1f}" for part in budget.parts)
    has = "" if budget.available is None else f" of {budget.available / 1e9:.1f}"
    others = ""
    if spared:
        others = f"; published weights are rank 0's alone, so the others need {spared / 1e9:.1f} less"
    return f"{budget.place} {budget.when}: {budget.needed / 1e9:.1f}{has} GB: {parts}{others}"


def _instants(memory: MemoryPlan, recipe: Recipe) -> str:
    """Say what torch allocates on a rank at each instant, with published weights where it holds them."""
    published = published_on_device(memory)
    peaks = ", ".join(f"{instant} {(size + published) / 1e9:.1f}" for instant, size in memory.rank_peaks.items())
    spared = _spared(memory, recipe)
    rank = "rank 0" if spared else "a rank"
    others = f"; on the others {spared / 1e9:.1f} less" if spared else ""
    return f"torch allocates on {rank}, in GB: {peaks}, between two steps {memory.rank_resident / 1e9:.1f}{others}"


def _requests(memory: MemoryPlan) -> str:
    return (
        f"an engine's cache holds {memory.cache_tokens:,} tokens, {memory.full_requests:,} requests of the longest "
        f"{memory.longest:,}; engine.slots {memory.slots:,}"
    )


def _advice(memory: MemoryPlan, recipe: Recipe) -> str:
    """Say what to do where not all slots can be of full length."""
    wider = ""
    if recipe.engine.capabilities.tensor_parallel:
        wider = f", or engine.tensor_parallel to {2 * recipe.engine.tensor_parallel} where there are GPUs for it"
    return (
        f"when many answers are long, requests beyond {memory.full_requests:,} wait for the cache and are computed "
        f"again: set engine.slots to {max(memory.full_requests, 1):,} if most answers are that long{wider}"
    )
