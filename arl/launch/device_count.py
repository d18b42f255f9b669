"""Count the GPUs that a recipe's processes need, and refuse machines with fewer."""

from arl.config.recipe import Recipe
from arl.errors import RecipeError
from arl.launch.base import Node
from arl.launch.devices import VISIBLE_DEVICES


def needed_devices(recipe: Recipe) -> int:
    """Return the number of GPUs that engines and ranks need."""
    engines = recipe.engine.replicas * recipe.engine.tensor_parallel
    ranks = recipe.train.ranks
    return max(engines, ranks) if recipe.mode == "collocated" else engines + ranks


def refuse_too_few_devices(recipe: Recipe, node: Node) -> None:
    """Raise RecipeError if the node has GPUs, but fewer than engines, ranks and an evaluation need."""
    count = len(node.devices)
    needed = needed_devices(recipe)
    evaluation = _devices_of_evaluation(recipe)
    if count >= needed + evaluation:
        return
    engine = recipe.engine
    ranks = recipe.train.ranks
    together = "on the same GPUs" if recipe.mode == "collocated" else "on GPUs of their own"
    whose = "visible" if node.planned_by is None else f"({node.planned_by})"
    beside = (
        f", and evaluation during training (eval.every {recipe.eval.every}) {evaluation} more" if evaluation else ""
    )
    remedies = ["a smaller engine.replicas or train.ranks", f"a machine with {needed + evaluation} GPUs"]
    if recipe.mode == "disaggregated":
        remedies.append("mode collocated")
    if evaluation:
        remedies.append("eval.every 0 with `arl eval` on the checkpoints")
    if node.planned_by is None and engine.tensor_parallel == 1:
        remedies.append(f"{VISIBLE_DEVICES}= for the CPU")
    raise RecipeError(
        f"mode {recipe.mode}: engines need {engine.replicas * engine.tensor_parallel} GPUs (engine.replicas "
        f"{engine.replicas} × engine.tensor_parallel {engine.tensor_parallel}), and the trainer {ranks} (train.ranks "
        f"{ranks}) {together}, which makes {needed}{beside}; there are {count} {whose}: use {', or '.join(remedies)}"
    )


def fitting_ranks(recipe: Recipe, devices: int) -> int:
    """Return the number of ranks with which `recipe` resumes on `devices` GPUs: train.ranks, or fewer.

    Fewer than train.ranks are taken only with train.min_ranks, and as a multiple of train.shard_ranks. On CPUs, where
    `devices` is 0, nothing limits them.

    Raises:
        RecipeError: not even train.min_ranks fit.
    """
    train = recipe.train
    if train.min_ranks is None or devices == 0:
        return train.ranks
    engines = 0 if recipe.mode == "collocated" else recipe.engine.replicas * recipe.engine.tensor_parallel
    room = min(devices - engines - _devices_of_evaluation(recipe), train.ranks)
    unit = train.shard_ranks or 1
    ranks = room // unit * unit
    if ranks < train.min_ranks:
        multiple = "" if unit == 1 else f", {max(ranks, 0)} as a multiple of train.shard_ranks {unit}"
        raise RecipeError(
            f"train.min_ranks {train.min_ranks}: {devices} GPUs are left, of which the trainer gets {max(room, 0)}"
            f"{multiple}; use fewer engine.replicas, a smaller train.min_ranks, or more nodes"
        )
    return ranks


def _devices_of_evaluation(recipe: Recipe) -> int:
    return recipe.engine.tensor_parallel if recipe.evaluates_beside else 0
