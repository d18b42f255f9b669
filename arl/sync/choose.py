"""Which transport a run uses. Torch-free.

             world virtual   rollout.lag   GPUs, disaggregated   GPUs, collocated with one SGLang   else
auto         memory          file          broadcast             ipc                                file
"""

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.launch.placement import Placement
from arl.types import Transport


def choose_transport(recipe: Recipe, placement: Placement) -> Transport:
    """The recipe's, or the one that suits `placement`.

    On a CPU a file in memory is as good as anything (docs/benchmarks/sync.json), and needs nobody to wait for anybody.

    Raises:
        InputError: the recipe's cannot work on these devices.
    """
    wanted, on_gpus = recipe.sync.transport, bool(placement.ranks[0].devices)
    together = recipe.mode == "collocated"
    reachable = together and recipe.engine.replicas == 1  # rank 0's GPU is that of the first replica alone
    if wanted == "broadcast" and on_gpus and together:
        raise InputError("sync.transport broadcast: NCCL joins no two processes on one GPU (mode collocated); use auto")
    if wanted == "ipc" and on_gpus and not reachable:
        raise InputError("sync.transport ipc: on GPUs only mode collocated with engine.replicas 1; use broadcast")
    if wanted != "auto":
        return wanted
    if recipe.world == "virtual":
        return "memory"
    if not on_gpus or recipe.rollout.lag is not None:
        return "file"
    if not together:
        return "broadcast"
    alone = recipe.engine.kind == "sglang" and recipe.engine.tensor_parallel == 1
    return "ipc" if alone and reachable else "file"
