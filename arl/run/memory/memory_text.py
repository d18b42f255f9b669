"""Write a plan of memory as the lines that `arl train --dry-run` prints. Torch-free."""

from collections.abc import Iterator

from arl.config.recipe import Recipe
from arl.run.memory.budget import MemoryBudget, MemoryPlan


def memory_lines(memory: MemoryPlan, recipe: Recipe) -> Iterator[str]:
    """Yield a line for each budget, then what they mean for an update and for requests."""
    for budget in memory.budgets:
        yield _budget(budget)
    peaks = ", ".join(f"{instant} {size / 1e9:.1f}" for instant, size in memory.rank_peaks.items())
    yield f"a rank's peaks in GB: {peaks}; between two steps {memory.rank_resident / 1e9:.1f}"
    yield _requests(memory)
    if memory.full_requests < memory.slots:
        yield _advice(memory, recipe)


def _budget(budget: MemoryBudget) -> str:
    parts = ", ".join(f"{part.name} {part.bytes / 1e9:.1f}" for part in budget.parts)
    has = "" if budget.available is None else f" of {budget.available / 1e9:.1f}"
    return f"{budget.place} {budget.when}: {budget.needed / 1e9:.1f}{has} GB: {parts}"


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
