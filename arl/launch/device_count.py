"""Count the GPUs that a recipe's processes need, and refuse a node with fewer."""

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.base import Node


def needed_devices(recipe: Recipe) -> int:
    """Return the number of GPUs that engines and ranks need."""
    engines = recipe.engine.replicas * recipe.engine.tensor_parallel
    ranks = recipe.train.ranks
    return max(engines, ranks) if recipe.mode == "collocated" else engines + ranks


def refuse_too_few_devices(recipe: Recipe, node: Node) -> None:
    """Raise RecipeError if the node has GPUs, but fewer than engines, ranks and an evaluation need."""
    engine = recipe.engine
    ranks = recipe.train.ranks
    needed = needed_devices(recipe)
    beside = engine.tensor_parallel if recipe.evaluates_beside else 0
    count = len(node.devices)
    if count >= needed + beside:
        return
    verb = "there is" if count == 1 else "there are"
    whose = "visible" if node.planned_by is None else f"({node.planned_by})"
    together = "on the same GPUs" if recipe.mode == "collocated" else "on GPUs of their own"
    evaluation = f", and evaluation during training {_gpus(beside)} more (--set eval.every=0: none)" if beside else ""
    raise RecipeError(
        f"mode {recipe.mode}: engines need {_gpus(engine.replicas * engine.tensor_parallel)} (engine.replicas "
        f"{engine.replicas} × engine.tensor_parallel {engine.tensor_parallel}), and the trainer {ranks} (train.ranks "
        f"{ranks}) {together}, which makes {needed}{evaluation}; {verb} {count} {whose}: lower engine.replicas or "
        "train.ranks, set mode to collocated, or CUDA_VISIBLE_DEVICES= to use the CPU"
    )


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
