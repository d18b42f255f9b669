"""Refuse a run that cannot fit, and find the settings with which it would: each is tried by planning again."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.run.memory.budget import MemoryBudget, MemoryPlan

Settings = Mapping[str, Any]  # field -> value
Plan = Callable[[Recipe], MemoryPlan]

LARGEST = 3  # parts that a message names
OFFERED = 3  # remedies
WIDTHS = (2, 4, 8)
DIVISIONS = 16  # of the GPUs between engines and ranks, at most
ROUNDED = 512  # tokens: the least capacity that is tried is a multiple


def refuse_overfull(recipe: Recipe, plan: Plan, hint: str | None = None) -> MemoryPlan:
    """Return the plan of `recipe`.

    Args:
        plan: plans a recipe on the given hardware; raises InputError where its processes cannot be placed there.
        hint: ends the message; None: there is none.

    Raises:
        InputError: something does not fit; names the largest parts, and settings with which everything does.
    """
    memory = plan(recipe)
    if memory.fits:
        return memory
    reasons = "; ".join(_reason(budget) for budget in memory.budgets if not budget.fits)
    sentences = [f"memory on {memory.hardware}: {reasons}", _advice(recipe, plan)]
    if hint is not None:
        sentences.append(hint)
    raise InputError(". ".join(sentences))


def _reason(budget: MemoryBudget) -> str:
    assert budget.available is not None, "a budget without a limit fits"
    largest = sorted(budget.parts, key=lambda part: part.bytes, reverse=True)[:LARGEST]
    parts = ", ".join(f"{part.name} ({part.owner}) {part.bytes / 1e9:.1f}" for part in largest)
    return (
        f"{budget.place} needs {budget.needed / 1e9:.1f} GB {budget.when}, and has {budget.available / 1e9:.1f} GB; "
        f"the largest parts in GB: {parts}"
    )


def _advice(recipe: Recipe, plan: Plan) -> str:
    found = list(itertools.islice(find_remedies(recipe, plan), OFFERED))
    if found:
        written = [" ".join(f"--set {field}={_write(value)}" for field, value in remedy.items()) for remedy in found]
        return f"It fits with {', or with '.join(written)}"
    tried = _name_tried(change for change, _ in _tried(recipe, plan))
    alone = f"It fits with none of these, alone or together: {tried}" if tried else "No other setting can be tried"
    larger = "larger or more GPUs" if plan(recipe).on_gpus else "a machine with more memory"
    return f"{alone}. Choose a smaller model, shorter answers (rollout.max_new_tokens), or {larger}"


def _name_tried(changes: Iterable[Settings]) -> str:
    """Name fields, each with the values that were tried.

    >>> _name_tried([{"train.capacity": 4096}, {"train.capacity": 2048}, {"engine.replicas": 1, "train.ranks": 7}])
    'train.capacity 4096, 2048; engine.replicas/train.ranks 1/7'
    """
    of_fields: dict[str, list[str]] = {}
    for change in changes:
        values = "/".join(map(_write, change.values()))
        of_fields.setdefault("/".join(change), []).append(values)
    return "; ".join(f"{fields} {', '.join(values)}" for fields, values in of_fields.items())


def find_remedies(recipe: Recipe, plan: Plan) -> Iterator[Settings]:
    """Yield settings with which everything fits: single ones, where none does pairs, and at last a longer row."""
    helpful = []
    found = False
    before = _excess(plan(recipe))
    for change, excess in _tried(recipe, plan):
        if excess == 0:
            found = True
            yield change
        elif excess < before:
            helpful.append(change)
    if found:
        return
    for one, other in itertools.combinations(helpful, 2):
        both = {**one, **other}
        if one.keys().isdisjoint(other) and _excess_with(recipe, both, plan) == 0:
            found = True
            yield both
    if not found:
        yield from _add_one_by_one(recipe, helpful, plan, before)


def _tried(recipe: Recipe, plan: Plan) -> Iterator[tuple[Settings, int]]:
    """Yield the changes that are possible on this hardware, each with the bytes that are missing with it."""
    for change in _candidates(recipe, plan(recipe)):
        excess = _excess_with(recipe, change, plan)
        if excess is not None:
            yield change, excess


def _add_one_by_one(
    recipe: Recipe,
    helpful: Sequence[Settings],
    plan: Plan,
    before: int,
) -> Iterator[Settings]:
    """Add each change that helps beside those before it, until everything fits; yield nothing if it never does."""
    chosen: Settings = {}
    least = before
    for change in helpful:
        tried = {**chosen, **change}
        excess = _excess_with(recipe, tried, plan)
        if excess is None or excess >= least:
            continue
        chosen = tried
        least = excess
        if not excess:
            yield chosen
            return


def _candidates(recipe: Recipe, memory: MemoryPlan) -> Iterator[Settings]:
    """Yield what may lower the memory, the cheapest in speed first.

    Args:
        memory: of the recipe.
    """
    train = recipe.train
    if train.dtype == "float32":
        yield {"train.dtype": "bfloat16"}
    if recipe.engine.dtype == "float32":
        yield {"engine.dtype": "bfloat16"}
    if train.checkpointing != "full":
        yield {"train.checkpointing": "full"}
    if not train.reshard:
        yield {"train.reshard": True}
    for capacity in _capacities(recipe, memory.longest):
        yield {"train.capacity": capacity}
    yield from _other_devices(recipe) if memory.on_gpus else _fewer_processes(recipe)
    for slots in (recipe.engine.slots // 4, recipe.engine.slots // 16):
        if slots:
            yield {"engine.slots": slots}
    if recipe.sync.transport != "broadcast" and recipe.mode == "disaggregated":
        yield {"sync.transport": "broadcast"}
    if recipe.rollout.staleness:
        yield {"rollout.staleness": recipe.rollout.staleness // 2}


def _capacities(recipe: Recipe, longest: int) -> list[int]:
    """Return smaller micro-batches, down to one that just holds the longest trajectory: several with packing fixed."""
    train = recipe.train
    needed = longest * (train.packing_count if train.packing == "fixed" else 1)
    least = -(-needed // ROUNDED) * ROUNDED
    wanted = {train.capacity // 2, train.capacity // 4, least}
    return sorted((size for size in wanted if needed <= size < train.capacity), reverse=True)


def _other_devices(recipe: Recipe) -> Iterator[Settings]:
    if recipe.mode == "disaggregated":
        yield from _divisions(recipe)
    for factor in WIDTHS:
        yield {"train.ranks": recipe.train.ranks * factor}
    for width in WIDTHS:
        if width > recipe.engine.tensor_parallel:
            yield {"engine.tensor_parallel": width}
    if recipe.engine.replicas > 1:
        yield {"engine.replicas": recipe.engine.replicas // 2}


def _divisions(recipe: Recipe) -> Iterator[Settings]:
    """Yield other divisions of the same GPUs between both sides, the nearest first, then with wider engines."""
    engine = recipe.engine
    total = engine.replicas * engine.tensor_parallel + recipe.train.ranks
    for number in _nearest(engine.replicas, most=(total - 1) // engine.tensor_parallel):
        if number != engine.replicas:
            yield {"engine.replicas": number, "train.ranks": total - number * engine.tensor_parallel}
    if not engine.capabilities.tensor_parallel:
        return
    for width in WIDTHS:
        if width <= engine.tensor_parallel:
            continue
        for number in _nearest(engine.replicas, most=(total - 1) // width):
            yield {
                "engine.replicas": number,
                "engine.tensor_parallel": width,
                "train.ranks": total - number * width,
            }


def _nearest(number: int, most: int) -> list[int]:
    """Return numbers from 1 to `most`, the nearest to `number` first; of very many a part.

    >>> _nearest(2, most=4)
    [2, 1, 3, 4]
    """
    ordered = sorted(range(1, most + 1), key=lambda other: abs(other - number))
    return ordered[:: len(ordered) // DIVISIONS + 1]


def _fewer_processes(recipe: Recipe) -> Iterator[Settings]:
    """Yield fewer processes on a CPU, where each has its own copy of what it computes with."""
    if recipe.engine.replicas > 1:
        yield {"engine.replicas": 1}
    if recipe.train.ranks > 1:
        yield {"train.ranks": 1}


def _excess_with(recipe: Recipe, settings: Settings, plan: Plan) -> int | None:
    """Return the bytes that are missing with these settings; None: the recipe is not valid, or cannot be placed."""
    tree = recipe.model_dump(mode="json")
    for field, value in settings.items():
        section, name = field.split(".")
        tree[section][name] = value
    try:
        return _excess(plan(Recipe.model_validate(tree)))
    except (ValidationError, InputError):
        return None


def _excess(memory: MemoryPlan) -> int:
    """Return the bytes that are missing in all memories together."""
    missing = [budget.needed - budget.available for budget in memory.budgets if budget.available is not None]
    return sum(size for size in missing if size > 0)


def _write(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
