"""Plan the memory of a recipe on its nodes, and refuse what cannot fit there.

model's config and meta model ─► MemoryInputs ─► plan_memory ─► MemoryPlan, or InputError with what would make it fit
"""

import os
from collections.abc import Callable, Sequence

from arl.config.recipe import Recipe
from arl.data.model_limits import model_config
from arl.data.model_shape import ModelShape
from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.host_memory import free_memory
from arl.launch.placement import Placement, merged
from arl.models.load import check_weights, empty_model
from arl.run.memory.budget import MemoryPlan
from arl.run.memory.hardware import describe_gpus
from arl.run.memory.planner import MemoryInputs, plan_memory
from arl.run.memory.remedies import refuse_overfull
from arl.train.rank_bytes import ParameterCounts
from arl.types import Transport

WITHOUT_GPUS = "This machine has no GPU; to plan for another one add --dry-run --gpus 8xH100"

Place = Callable[[Recipe], tuple[Placement, Transport]]


def plan_recipe(
    recipe: Recipe, nodes: Sequence[Node], place: Place, longest: int, kept: int, is_here: bool
) -> MemoryPlan:
    """Return the plan of a recipe with a model.path and without `auto`.

    Args:
        nodes: of one kind; the plan is of the GPUs that have the least memory.
        place: places a recipe on the nodes and chooses its transport; raises InputError where that is impossible.
        longest: trajectory, tokens.
        kept: versions that engines may still load.
        is_here: the nodes are there. The memory of a host is known only if this machine is the only node.

    Raises:
        InputError: it does not fit; with the largest parts, and settings with which it would.
        DataError: there is no model, or not one that arl supports.
    """
    path = str(recipe.model.path)
    model = empty_model(path)
    if os.path.isdir(path):  # otherwise it is downloaded when the run begins
        check_weights(model, path)
    parameters = ParameterCounts.of(model)
    config = model_config(path)
    shape = ModelShape.of(config)
    node = merged(nodes)
    known = [one.device_bytes for one in nodes if one.device_bytes is not None]
    device_bytes = min(known, default=None)

    def plan(tried: Recipe) -> MemoryPlan:
        _refuse_divided_heads(tried.engine.tensor_parallel, shape)
        placement, transport = place(tried)
        given = MemoryInputs(
            shape=shape,
            parameters=parameters,
            context=config.max_position_embeddings,
            longest=longest,
            kept=kept,
            device_bytes=device_bytes,
            host_bytes=free_memory() if is_here and len(nodes) == 1 else None,
            hardware=_hardware(node, placement),
        )
        return plan_memory(tried, placement, transport, given)

    return refuse_overfull(recipe, plan, hint=None if node.devices else WITHOUT_GPUS)


def _refuse_divided_heads(width: int, shape: ModelShape) -> None:
    """Raise InputError if the GPUs of one engine cannot share the model's attention heads equally."""
    if shape.heads % width:
        raise InputError(
            f"engine.tensor_parallel {width}: must divide the {shape.heads} attention heads of the model; use another"
        )


def _hardware(node: Node, placement: Placement) -> str:
    if not placement.on_gpus:
        return f"{node.name}, without GPUs"
    return describe_gpus(node)
