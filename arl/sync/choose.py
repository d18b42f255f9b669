"""Choose the transport of a run. Torch-free.

sync.transport auto, first row that fits:

    engines in the trainer's process                                                memory
    no GPUs, or rollout.lag                                                         file
    GPUs, disaggregated                                                             broadcast
    GPUs, collocated: one engine on the trainer's GPU, and its backend takes ipc    ipc
    GPUs, collocated: any other                                                     file

A choice that the backend cannot take, or that needs a common file system where there is none, is passed over.
"""

from collections.abc import Collection

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.types import Transport


def choose_transport(
    recipe: Recipe,
    *,
    backend_transports: Collection[Transport],
    one_process: bool,
    on_gpus: bool,
    shares_files: bool = True,
) -> Transport:
    """Return the recipe's transport, or with `auto` the one that suits its devices.

    On a CPU a file in memory is as fast as the others (docs/benchmarks/sync.json), and no process waits for another.

    Args:
        recipe: has been validated: see Sync.refuse_impossible.
        backend_transports: the ways by which the engine's backend can take weights.
        one_process: engines generate in the trainer's process.
        on_gpus: engines and trainer compute on GPUs.
        shares_files: every process reads what another one writes to a file.

    Raises:
        InputError: the recipe's transport cannot work on these devices, or `auto` finds none that can.
    """
    wanted = recipe.sync.transport
    if wanted != "auto":
        _refuse_unsuited(recipe, wanted, on_gpus, shares_files)
        return wanted
    for transport in _preferred(recipe, one_process, on_gpus):
        if transport in backend_transports and (shares_files or not _needs_files(transport)):
            return transport
    can = ", ".join(sorted(backend_transports))
    raise InputError(
        f"sync.transport auto: engine.kind {recipe.engine.kind} takes weights by {can}, and none of these works with "
        f"mode {recipe.mode} here; choose another engine.kind, or mode disaggregated on one machine"
    )


def _preferred(recipe: Recipe, one_process: bool, on_gpus: bool) -> list[Transport]:
    """Return the transports that can work, the best first."""
    if one_process:
        return ["memory", "file"]
    if recipe.rollout.lag is not None:
        return ["file"]
    if not on_gpus:
        return ["file", "broadcast"]
    if recipe.mode == "disaggregated":
        return ["broadcast", "file"]
    return ["ipc", "file"] if _shares_one_gpu(recipe) else ["file"]


def _refuse_unsuited(recipe: Recipe, wanted: Transport, on_gpus: bool, shares_files: bool) -> None:
    """Raise InputError if the recipe's transport cannot work on these devices."""
    named = f"sync.transport {wanted}"
    if wanted == "broadcast" and on_gpus and recipe.mode == "collocated":
        raise InputError(f"{named}: NCCL joins no two processes on one GPU (mode collocated); use auto")
    if wanted == "ipc" and on_gpus and not _shares_one_gpu(recipe):
        raise InputError(f"{named}: on GPUs only mode collocated with engine.replicas 1; use broadcast")
    if _needs_files(wanted) and not shares_files:
        raise InputError(f"{named}: processes on these nodes have no file system in common; use broadcast")


def _shares_one_gpu(recipe: Recipe) -> bool:
    """Return whether the only engine is on rank 0's GPU, and nowhere else."""
    engine = recipe.engine
    return recipe.mode == "collocated" and engine.replicas == 1 and engine.tensor_parallel == 1


def _needs_files(transport: Transport) -> bool:
    return transport in ("file", "ipc")
