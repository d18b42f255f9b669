"""Put together the environment variables of a run's two sides: trainer ranks and engine servers. Torch-free.

train.environment  ─┬─► NCCL settings of both sides ─┬─► ranks, with an allocator that suits packs of varying size
engine.environment ─┘                                └─► engine servers
"""

import os

from arl.config.recipe import Recipe
from arl.launch.nccl_settings import nccl_settings
from arl.types import Transport

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # torch reads the old name and the new one
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def rank_environment(recipe: Recipe, transport: Transport) -> dict[str, str]:
    """Return the variables of trainer ranks that come from the recipe, or are chosen for both sides.

    Packs differ in length from step to step, which fragments torch's memory of fixed segments; expandable segments
    avoid that. They are for ranks alone, because SGLang's memory saver refuses them, and not for transport ipc, because
    their handles are file descriptors, which an engine that is not a child of the rank may not be allowed to take.

    Raises:
        RecipeError: the two sides give different values to a setting that they must share.
    """
    environment = {**recipe.train.environment, **nccl_settings(recipe)}
    is_given = any(name in environment or name in os.environ for name in ALLOCATOR_VARIABLES)
    if transport == "ipc" or is_given:
        return environment
    return environment | EXPANDABLE


def engine_environment(recipe: Recipe) -> dict[str, str]:
    """Return the variables of engine servers that come from the recipe, or are chosen for both sides.

    Raises:
        RecipeError: the two sides give different values to a setting that they must share.
    """
    return {**recipe.engine.environment, **nccl_settings(recipe)}
