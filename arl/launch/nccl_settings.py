"""Choose NCCL's settings that both ends of a weight broadcast must share. Torch-free.

train.environment, engine.environment, the environment of `arl train`, else 0 ─► one value for ranks and engine servers

SGLang sets both variables to 0 where they are unset (`_set_envs_and_config` in its entrypoints/engine.py, 0.5.20), and
NCCL's own default is on. With cuMem on at one end only, the ends exchange handles of different kinds (a file descriptor
and a legacy IPC handle), and the first broadcast fails or hangs. NVLink SHARP (NVLS) needs buffers from cuMem.
"""

import os
from collections.abc import Mapping

from arl.config.recipe import Recipe
from arl.errors import RecipeError

SHARED = ("NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE")
OFF = "0"


def nccl_settings(recipe: Recipe) -> dict[str, str]:
    """Return the value of each shared setting, for the processes of both sides.

    Raises:
        RecipeError: train.environment and engine.environment give different values.
    """
    return {name: _one_value(name, recipe.train.environment, recipe.engine.environment) for name in SHARED}


def _one_value(name: str, train: Mapping[str, str], engine: Mapping[str, str]) -> str:
    for_ranks = train.get(name)
    for_engines = engine.get(name)
    if for_ranks is not None and for_engines is not None and for_ranks != for_engines:
        raise RecipeError(
            f"train.environment {name}={for_ranks}, engine.environment {name}={for_engines}: both ends of a weight "
            "broadcast need the same value; give it on one side, and the other side takes it"
        )
    given = for_ranks if for_ranks is not None else for_engines
    return given if given is not None else os.environ.get(name, OFF)
