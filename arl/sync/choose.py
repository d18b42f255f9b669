"""Choose the transport of a run. Torch-free.

sync.transport auto, first row that fits:

    engines in the trainer's process                                                memory
    rollout.lag, or no GPUs and one node                                            file
    no GPUs, several nodes                                                          broadcast
    GPUs, disaggregated                                                             broadcast
    GPUs, collocated: every engine on GPUs of ranks, and its backend takes ipc      ipc
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
    shares_memory: bool = True,
) -> Transport:
    """Return the recipe's transport, or with `auto` the one that suits its devices.

    On a CPU a file in memory is as fast as the others (docs/benchmarks/sync.json), and no process waits for another.

    Args:
        recipe: has been validated.
        backend_transports: the ways by which the engine's backend can take weights.
        one_process: engines generate in the trainer's process.
        on_gpus: engines and trainer compute on GPUs.
        shares_files: every process reads what another one writes to a file.
        shares_memory: all of them are on one node.

    Raises:
        InputError: the recipe's transport cannot work on these devices, or `auto` finds none that can.
    """
    wanted = recipe.sync.transport
    if wanted == "auto":
        return _first_possible(recipe, backend_transports, one_process, on_gpus, shares_files, shares_memory)
    _refuse_unsuited(recipe, wanted, on_gpus, shares_files)
    if wanted == "ipc" and not shares_memory:
        raise InputError("sync.transport ipc: the run is on several nodes, and handles are of one; use auto")
    return wanted


def _first_possible(
    recipe: Recipe,
    backend_transports: Collection[Transport],
    one_process: bool,
    on_gpus: bool,
    shares_files: bool,
    shares_memory: bool,
) -> Transport:
    """Return what `auto` stands for here, or raise InputError."""
    for transport in _preferred(recipe, one_process, on_gpus, shares_memory):
        if transport in backend_transports and (shares_files or not _needs_files(transport)):
            return transport
    can = ", ".join(sorted(backend_transports))
    raise InputError(
        f"sync.transport auto: engine.kind {recipe.engine.kind} takes weights by {can}, and none of these works with "
        f"mode {recipe.mode} here; choose another engine.kind, or mode disaggregated on one machine"
    )


def _preferred(recipe: Recipe, one_process: bool, on_gpus: bool, shares_memory: bool) -> list[Transport]:
    """Return the transports that can work, the best first."""
    if one_process:
        return ["memory", "file"]
    if recipe.rollout.lag is not None:
        return ["file"]
    if not on_gpus:
        return ["file", "broadcast"] if shares_memory else ["broadcast", "file"]
    if recipe.mode == "disaggregated":
        return ["broadcast", "file"]
    return ["ipc", "file"] if shares_memory and _is_on_ranks(recipe) else ["file"]


def _refuse_unsuited(recipe: Recipe, wanted: Transport, on_gpus: bool, shares_files: bool) -> None:
    """Raise InputError if the recipe's transport cannot work on these devices."""
    named = f"sync.transport {wanted}"
    if wanted == "broadcast" and on_gpus and recipe.mode == "collocated":
        raise InputError(f"{named}: NCCL joins no two processes on one GPU (mode collocated); use auto")
    if wanted == "ipc" and on_gpus and recipe.mode != "collocated":
        raise InputError(f"{named}: on GPUs only mode collocated; use broadcast")
    if wanted == "ipc" and on_gpus and not _is_on_ranks(recipe):
        engine = recipe.engine
        raise InputError(
            f"{named}: each GPU of an engine must be a rank's, and engine.replicas {engine.replicas} × "
            f"engine.tensor_parallel {engine.tensor_parallel} are more than train.ranks {recipe.train.ranks}; "
            "use as many ranks, or file"
        )
    if _needs_files(wanted) and not shares_files:
        raise InputError(f"{named}: processes on these nodes have no file system in common; use broadcast")


def _is_on_ranks(recipe: Recipe) -> bool:
    """Return whether every GPU of an engine is also a trainer rank's (arl.launch.placement)."""
    engine = recipe.engine
    gpus = engine.replicas * engine.tensor_parallel
    return recipe.mode == "collocated" and gpus <= recipe.train.ranks


def _needs_files(transport: Transport) -> bool:
    return transport in ("file", "ipc")
