"""Refuse a run that cannot fit, and find the settings with which it would: each is tried by planning again."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.run.memory.budget import MemoryBudget, MemoryPlan

Setting = tuple[str, Any]  # field, value
Plan = Callable[[Recipe], MemoryPlan]

LARGEST = 3  # parts that a message names
OFFERED = 3  # remedies
WIDTHS = (2, 4, 8)


def refuse_overfull(recipe: Recipe, plan: Plan) -> MemoryPlan:
    """Return the plan of `recipe`.

    Args:
        plan: plans a recipe on the given hardware; raises InputError where its processes cannot be placed there.

    Raises:
        InputError: something does not fit; names the largest parts, and settings with which everything does.
    """
    memory = plan(recipe)
    if memory.fits:
        return memory
    reasons = "; ".join(_reason(budget) for budget in memory.budgets if not budget.fits)
    raise InputError(f"memory on {memory.hardware}: {reasons}. {_advice(recipe, plan)}")


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
    if not found:
        return "No setting that was tried makes it fit: choose a smaller model, or larger or more GPUs"
    written = [" ".join(f"--set {field}={_write(value)}" for field, value in remedy.items()) for remedy in found]
    return f"It fits with {', or with '.join(written)}"


def find_remedies(recipe: Recipe, plan: Plan) -> Iterator[Mapping[str, Any]]:
    """Yield settings with which everything fits: single ones, where none does pairs, and at last a longer row."""
    helpful = []
    found = False
    memory = plan(recipe)
    before = _excess(memory)
    for setting in _candidates(recipe, memory.longest):
        excess = _excess_with(recipe, dict([setting]), plan)
        if excess == 0:
            found = True
            yield dict([setting])
        elif excess is not None and excess < before:
            helpful.append(setting)
    if found:
        return
    for pair in itertools.combinations(helpful, 2):
        if pair[0][0] != pair[1][0] and _excess_with(recipe, dict(pair), plan) == 0:
            found = True
            yield dict(pair)
    if not found:
        yield from _add_one_by_one(recipe, helpful, plan, before)


def _add_one_by_one(
    recipe: Recipe,
    helpful: list[Setting],
    plan: Plan,
    before: int,
) -> Iterator[Mapping[str, Any]]:
    """Add each setting that helps beside those before it, until everything fits; yield nothing if it never does."""
    chosen: dict[str, Any] = {}
    least = before
    for field, value in helpful:
        tried = {**chosen, field: value}
        excess = _excess_with(recipe, tried, plan)
        if excess is None or excess >= least:
            continue
        chosen = tried
        least = excess
        if not excess:
            yield chosen
            return


def _candidates(recipe: Recipe, longest: int) -> Iterator[Setting]:
    """Yield what may lower the memory, the cheapest in speed first.

    Args:
        longest: tokens of the longest trajectory, which a micro-batch must hold; with `packing: fixed` several.
    """
    train = recipe.train
    least = longest * (train.packing_count if train.packing == "fixed" else 1)
    if train.dtype == "float32":
        yield "train.dtype", "bfloat16"
    if recipe.engine.dtype == "float32":
        yield "engine.dtype", "bfloat16"
    if train.checkpointing != "full":
        yield "train.checkpointing", "full"
    if not train.reshard:
        yield "train.reshard", True
    for capacity in (train.capacity // 2, train.capacity // 4):
        if capacity >= least:
            yield "train.capacity", capacity
    yield from _more_devices(recipe)
    for slots in (recipe.engine.slots // 4, recipe.engine.slots // 16):
        if slots:
            yield "engine.slots", slots
    if recipe.sync.transport != "broadcast" and recipe.mode == "disaggregated":
        yield "sync.transport", "broadcast"
    if recipe.rollout.staleness:
        yield "rollout.staleness", recipe.rollout.staleness // 2


def _more_devices(recipe: Recipe) -> Iterator[Setting]:
    ranks = recipe.train.ranks
    for factor in WIDTHS:
        yield "train.ranks", ranks * factor
    for width in WIDTHS:
        if width > recipe.engine.tensor_parallel:
            yield "engine.tensor_parallel", width
    if recipe.engine.replicas > 1:
        yield "engine.replicas", recipe.engine.replicas // 2


def _excess_with(recipe: Recipe, settings: Mapping[str, Any], plan: Plan) -> int | None:
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
