"""Choose the transport of a run, and say what each one needs and holds: every rule about transports. Torch-free.

    transport   engines must be                    versions held, of η + 2 = `kept`             sync.transport auto
    memory      in the trainer's process           kept + 2, in its memory                      there, first
    ipc         on the GPUs of ranks (or CPUs),    kept, on GPUs of ranks; on a CPU kept + 1    collocated, GPUs: first
                on one node with common files      files
    broadcast   on GPUs of their own (or CPUs)     2, on rank 0's GPU, else host memory         GPUs or several nodes
    file        with common files                  kept + 1 files, and 2 in host memory         else; with rollout.lag

A choice that the backend cannot take is passed over.
On a CPU a file in memory is as fast as the others (docs/benchmarks/sync.json), and no process waits for another.
"""

from collections.abc import Collection
from typing import Literal, NamedTuple

import numpy as np

from arl.config.recipe import Recipe
from arl.errors import InputError
from arl.sync.buckets import ITEM_BYTES
from arl.types import Transport

BufferPlace = Literal["device", "host"]
BROADCAST_BUFFERS = 2  # arl.sync.version_buffers says why these are enough
FILE_BUFFERS = 2  # one is written to a file while the next snapshot is taken
SHARE_OF_FREE_MEMORY = 0.5  # of a GPU that holds weights and moments; gradients and activations need the rest


class _Surroundings(NamedTuple):
    one_process: bool
    on_gpus: bool
    shares_memory: bool


def choose_transport(
    recipe: Recipe,
    *,
    backend_transports: Collection[Transport],
    one_process: bool,
    on_gpus: bool,
    shares_memory: bool = True,
) -> Transport:
    """Return the recipe's transport, or with `auto` the one that suits its devices.

    Args:
        recipe: has been validated.
        backend_transports: the ways by which the engine's backend can take weights.
        one_process: engines generate in the trainer's process.
        on_gpus: engines and trainer compute on GPUs.
        shares_memory: all of them are on one node.

    Raises:
        InputError: the recipe's transport cannot work on these devices, or `auto` finds none that can.
    """
    here = _Surroundings(one_process, on_gpus, shares_memory)
    wanted = recipe.sync.transport
    if wanted != "auto":
        if obstacle := _obstacle(wanted, recipe, here):
            raise InputError(f"sync.transport {wanted}: {obstacle}")
        return wanted
    for transport in _preferred(here):
        if transport in backend_transports and not _obstacle(transport, recipe, here):
            return transport
    can = ", ".join(sorted(backend_transports))
    raise InputError(
        f"sync.transport auto: engine.kind {recipe.engine.kind} takes weights by {can}, and none of these works with "
        f"mode {recipe.mode} here; choose another engine.kind, or mode disaggregated on one machine"
    )


def _preferred(here: _Surroundings) -> tuple[Transport, ...]:
    """Return the transports that `auto` tries, the best first."""
    if here.on_gpus:
        return ("memory", "ipc", "broadcast", "file")
    return ("memory", "file", "broadcast") if here.shares_memory else ("memory", "broadcast", "file")


def _obstacle(transport: Transport, recipe: Recipe, here: _Surroundings) -> str:
    """Say why a transport cannot work, and what to use; empty: it can. A recipe's own is one that its world allows."""
    is_sent = transport in ("broadcast", "ipc")
    if (transport == "memory" and not here.one_process) or (is_sent and here.one_process):
        return "not in this world; use auto"
    if is_sent and recipe.rollout.lag is not None:
        return "with rollout.lag checkpoints copy the files that engines load; use file"
    if transport == "broadcast" and here.on_gpus and recipe.mode == "collocated":
        return "NCCL joins no two processes on one GPU (mode collocated); use auto"
    if transport == "ipc" and here.on_gpus:
        if recipe.mode != "collocated":
            return "on GPUs only mode collocated; use broadcast"
        engine = recipe.engine
        if engine.replicas * engine.tensor_parallel > recipe.train.ranks:  # see arl.launch.placement
            return (
                f"each GPU of an engine must be a rank's, and engine.replicas {engine.replicas} × "
                f"engine.tensor_parallel {engine.tensor_parallel} are more than train.ranks {recipe.train.ranks}; "
                "use as many ranks, or file"
            )
    if transport == "ipc" and not here.shares_memory:
        return "the run is on several nodes, and handles are of one; use auto"
    return ""


def uses_files(transport: Transport) -> bool:
    """Return whether engines find the weights, or handles of them, in files. The others hold them in memory alone."""
    return transport in ("file", "ipc")


def kept_versions(recipe: Recipe, lags: np.ndarray | None) -> int:
    """Return how many published versions are kept at once: η + 2, for the reason that Publisher gives.

    Without a bound, Rollout.versions_ahead takes the place of η.

    Args:
        lags: (steps, P) int32, of the recipe, see arl.rollout.exact_lag; then their largest takes the place of η.
            None: the recipe has no lag.
    """
    if recipe.mode == "collocated":
        return 2  # no step begins before the weights of its predecessor are loaded
    ahead = recipe.rollout.versions_ahead if lags is None else int(lags.max())
    return ahead + 2


def oldest_age(recipe: Recipe, lags: np.ndarray | None) -> int:
    """Return η, or the largest of the recipe's exact lags."""
    return recipe.rollout.max_age if lags is None else int(lags.max())


class HeldVersions(NamedTuple):
    """Count the published versions in each kind of memory; each takes `published_bytes`."""

    on_device: int = 0  # memory of a GPU: of rank 0; with ipc, of every rank whose GPU an engine uses
    on_host: int = 0  # memory of the process of rank 0, pinned where there is a GPU
    in_files: int = 0  # files in the publication directory, one that is being written included


def held_versions(transport: Transport, kept: int, place: BufferPlace, on_gpus: bool) -> HeldVersions:
    """Return how many versions a transport holds at once.

    Args:
        kept: see kept_versions.
        place: of the buffers of a broadcast, see buffer_place.
        on_gpus: the trainer's ranks compute on GPUs.
    """
    if transport == "broadcast":
        on_device = place == "device" and on_gpus
        return HeldVersions(on_device=BROADCAST_BUFFERS) if on_device else HeldVersions(on_host=BROADCAST_BUFFERS)
    if transport == "ipc":
        return HeldVersions(on_device=kept) if on_gpus else HeldVersions(in_files=kept + 1)
    if transport == "file":
        return HeldVersions(on_host=FILE_BUFFERS, in_files=kept + 1)
    return HeldVersions(on_host=kept + 2)  # memory: kept, in work and waiting


def published_bytes(parameters: int, dtype: str) -> int:
    """Return the bytes of one published version.

    Args:
        parameters: of the model, a tied head counted once.
        dtype: train.dtype, float32 or bfloat16.

    >>> published_bytes(7_600_000_000, "bfloat16")
    15200000000
    """
    return parameters * ITEM_BYTES[dtype]


def buffer_place(version_bytes: int, free_bytes: int) -> BufferPlace:
    """Choose where the buffers of a broadcast lie: on the GPU if all of them fit into half of its free memory.

    Args:
        version_bytes: see published_bytes.
        free_bytes: of the GPU, when weights and moments are loaded.
    """
    needed = BROADCAST_BUFFERS * version_bytes
    return "device" if needed <= SHARE_OF_FREE_MEMORY * free_bytes else "host"
