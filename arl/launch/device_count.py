"""Count the GPUs that a recipe's processes need, and refuse a node with fewer, with settings that would do there."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.base import Node
from arl.launch.devices import VISIBLE_DEVICES

Settings = Mapping[str, Any]  # field -> value


def needed_devices(recipe: Recipe) -> int:
    """Return the number of GPUs that engines and ranks need."""
    engines = recipe.engine.replicas * recipe.engine.tensor_parallel
    ranks = recipe.train.ranks
    return max(engines, ranks) if recipe.mode == "collocated" else engines + ranks


def refuse_too_few_devices(recipe: Recipe, node: Node) -> None:
    """Raise RecipeError if the node has GPUs, but fewer than engines, ranks and an evaluation need."""
    count = len(node.devices)
    needed = needed_devices(recipe)
    width = recipe.engine.tensor_parallel
    if count >= _all_devices(recipe):
        return
    remedies = _remedies(recipe, node)
    if count < needed:
        raise RecipeError(f"{_need_of_sides(recipe)}; {_count(node)}: use {', or '.join(remedies)}")
    raise RecipeError(
        f"eval.every {recipe.eval.every}: evaluation during training is a replica of its own on {_gpus(width)}, which "
        f"makes {needed + width} with the {needed} of engines and ranks; {_count(node)}: use --set eval.every=0 and "
        f"`arl eval` on the checkpoints, or {', or '.join(remedies)}"
    )


def _need_of_sides(recipe: Recipe) -> str:
    engine = recipe.engine
    of_engines = engine.replicas * engine.tensor_parallel
    ranks = recipe.train.ranks
    factors = f"engine.replicas {engine.replicas} × engine.tensor_parallel {engine.tensor_parallel}"
    together = "on the same GPUs" if recipe.mode == "collocated" else "on GPUs of their own"
    return (
        f"mode {recipe.mode}: engines need {_gpus(of_engines)} ({factors}), and the trainer {ranks} (train.ranks "
        f"{ranks}) {together}, which makes {needed_devices(recipe)}"
    )


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _count(node: Node) -> str:
    """Say how many GPUs there are, and whose."""
    verb = "there is" if len(node.devices) == 1 else "there are"
    whose = "visible" if node.planned_by is None else f"({node.planned_by})"
    return f"{verb} {len(node.devices)} {whose}"


def _remedies(recipe: Recipe, node: Node) -> list[str]:
    remedies = [_write(settings) for settings in _fitting_settings(recipe, len(node.devices))]
    if node.planned_by is None and recipe.engine.tensor_parallel == 1:
        remedies.append(f"{VISIBLE_DEVICES}= for the CPU")
    return remedies or [f"a machine with {_gpus(_all_devices(recipe))} or more"]


def _fitting_settings(recipe: Recipe, count: int) -> Iterator[Settings]:
    """Yield settings with which a valid recipe needs at most `count` GPUs: of the same mode, and of the other one."""
    if recipe.mode == "collocated":
        if _fits(recipe, _shared(recipe, count), count):
            yield _shared(recipe, count)
        return
    if _fits(recipe, _divided(recipe, count), count):
        yield _divided(recipe, count)
    for settings in ({"mode": "collocated"}, {"mode": "collocated", **_shared(recipe, count)}):
        if _fits(recipe, settings, count):
            yield settings
            return


def _fits(recipe: Recipe, settings: Settings, count: int) -> bool:
    tried = _with(recipe, settings)
    return tried is not None and _all_devices(tried) <= count


def _divided(recipe: Recipe, count: int) -> Settings:
    """Divide the GPUs between both sides, nearly as the recipe does, and halve the ranks rather than take one away."""
    width = recipe.engine.tensor_parallel
    free = count - width if recipe.evaluates_beside else count
    share = free * recipe.train.ranks / needed_devices(recipe)
    possible = [ranks for ranks in _halves(recipe.train.ranks) if ranks + width <= free]
    ranks = min(possible, key=lambda ranks: abs(ranks - share), default=1)
    return {"engine.replicas": max((free - ranks) // width, 1), "train.ranks": ranks}


def _halves(number: int) -> Iterator[int]:
    """Yield a number, its half, and so on down to 1."""
    while number > 0:
        yield number
        number //= 2


def _shared(recipe: Recipe, count: int) -> Settings:
    """Lower each side to the processes for which there are GPUs."""
    width = recipe.engine.tensor_parallel
    free = count - width if recipe.evaluates_beside else count
    return {
        "engine.replicas": max(min(free // width, recipe.engine.replicas), 1),
        "train.ranks": min(free, recipe.train.ranks),
    }


def _all_devices(recipe: Recipe) -> int:
    beside = recipe.engine.tensor_parallel if recipe.evaluates_beside else 0
    return needed_devices(recipe) + beside


def _with(recipe: Recipe, settings: Settings) -> Recipe | None:
    """Return the recipe with these settings; None: it would not be valid."""
    tree = recipe.model_dump(mode="json")
    for field, value in settings.items():
        section, _, name = field.rpartition(".")
        fields = tree[section] if section else tree
        fields[name] = value
    try:
        return Recipe.model_validate(tree)
    except ValidationError:
        return None


def _write(settings: Settings) -> str:
    return " ".join(f"--set {field}={value}" for field, value in settings.items())
