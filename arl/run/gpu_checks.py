"""Look at the GPUs of a planned run before anything is started: who uses them, how they connect, what they lack.

placement ─► devices of the run ─► nvidia-smi ─► refusals (InputError) and notes for the plan

Nothing here imports torch or touches CUDA, because the controller must hold no CUDA context.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence

from msgspec import Struct

from arl.config.recipe import Recipe
from arl.engine.backend import Installation
from arl.errors import InputError
from arl.launch.compilers import INSTALL_COMPILER, c_compiler, install_header, lacks_header
from arl.launch.gpu_devices import Gpu, find_gpus, named_gpus
from arl.launch.gpu_peers import pairs_without_access
from arl.launch.gpu_users import refuse_busy
from arl.launch.placement import Placement, is_mig
from arl.launch.torch_build import own_torch, probe_torch, refuse_unequal_nccl
from arl.sync.weight_folders import SHARED_MEMORY
from arl.types import Transport

LEAST_SHARED = 1_000_000_000  # bytes that NVIDIA advises for NCCL: docker run --shm-size=1g
UNKNOWN_MEMORY = (
    "mode collocated, and the memory of the GPUs is not known: SGLang takes up to 0.9 of it; leave room for the "
    "trainer with --mem-fraction-static in engine.args"
)
NOT_LOOKED = "no nvidia-smi: not looked at whether other processes use the GPUs, and how the GPUs are connected"


class GpuReport(Struct, frozen=True):
    """Hold what was found out about the GPUs of a run."""

    gpus: tuple[Gpu, ...] = ()  # those that the run uses, as far as nvidia-smi knows them
    notes: tuple[str, ...] = ()


def check_gpus(recipe: Recipe, placement: Placement, transport: Transport, backend: Installation) -> GpuReport:
    """Check the GPUs of a run, and what it needs on them.

    Raises:
        InputError: another process uses a GPU, there is no compiler, the backend lacks packages, shared memory is too
            small for NCCL, or the two sides have different versions of NCCL.
    """
    names = placement.devices_of(0)
    if not names:
        return GpuReport()
    _check_compilers(recipe, backend)
    if backend.lacking:
        raise InputError(f"{backend}: on GPUs it needs {', '.join(backend.lacking)}; {install_packages(backend)}")
    notes = [*check_shared_memory(recipe, placement, transport)]
    if transport == "broadcast" and recipe.engine.capabilities.own_interpreter:
        refuse_unequal_nccl(own_torch(), sys.executable, probe_torch(backend.place), backend.place)
    found = find_gpus()
    used = named_gpus(found or (), names)
    is_known = any(gpu.total_bytes for gpu in used)
    if recipe.mode == "collocated" and recipe.engine.kind == "sglang" and not is_known:
        notes.append(UNKNOWN_MEMORY)
    if found is None:
        return GpuReport(notes=(*notes, NOT_LOOKED))
    for gpu in used:
        notes += refuse_busy(gpu)
    notes += _slow_paths(used)
    notes += _about_names(found, names)
    return GpuReport(tuple(used), tuple(notes))


def install_packages(backend: Installation) -> str:
    """Return the command that installs what a backend lacks on GPUs."""
    names = " ".join(f"'{requirement}'" for requirement in backend.lacking)
    return f"{backend.place} -m pip install {names}"


def check_shared_memory(recipe: Recipe, placement: Placement, transport: Transport) -> Iterator[str]:
    """Yield a note if NCCL does without /dev/shm, by which it moves data between GPUs without peer access.

    Raises:
        InputError: processes of the run form an NCCL group, and there is too little of it.
    """
    width = len(placement.engines[0].devices)
    if len(placement.ranks) == 1 and width == 1 and transport != "broadcast":
        return
    name = "NCCL_SHM_DISABLE"
    choices = (recipe.train.environment.get(name), recipe.engine.environment.get(name), os.environ.get(name))
    if "1" in choices:
        yield f"{name}=1: NCCL moves data between GPUs without peer access over the network's loopback, which is slower"
        return
    free = shutil.disk_usage(SHARED_MEMORY).free if os.path.isdir(SHARED_MEMORY) else 0
    if free < LEAST_SHARED:
        raise InputError(
            f"{SHARED_MEMORY}: {free / 1e6:.0f} MB are free, and NCCL needs about {LEAST_SHARED / 1e6:.0f} MB of it: "
            f"start the container with --shm-size=16g or --ipc=host, or set {name}=1 for `arl train`, which is slower"
        )


def _check_compilers(recipe: Recipe, backend: Installation) -> None:
    if c_compiler() is None:
        raise InputError(f"no C compiler: Triton compiles with it on GPUs; {INSTALL_COMPILER}")
    pythons = [sys.executable]
    if recipe.engine.capabilities.own_interpreter:
        pythons.append(backend.place)
    for python in pythons:
        directory = lacks_header(python)
        if directory is not None:
            raise InputError(
                f"{python}: no Python.h in {directory}, which Triton needs on GPUs; {install_header(directory)}"
            )


def _slow_paths(gpus: Sequence[Gpu]) -> Iterator[str]:
    if len(gpus) < 2:
        return
    pairs = pairs_without_access([gpu.number for gpu in gpus])
    if pairs is None:
        yield "nvidia-smi does not say which GPUs have access to each other's memory"
    elif pairs:
        named = ", ".join(f"{one} and {other}" for one, other in pairs)
        yield (
            f"GPUs {named}: no access to each other's memory, so NCCL copies by way of the host: gradients, tensor "
            "parallelism and broadcasts of weights are slower"
        )


def _about_names(gpus: Sequence[Gpu], names: Sequence[str]) -> Iterator[str]:
    """Yield notes where a name may not mean the GPU that nvidia-smi gives this number, or could not be looked up."""
    kinds = {gpu.name for gpu in gpus}
    by_number = any(name.isdecimal() for name in names)
    if by_number and len(kinds) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        yield "GPUs of several kinds: CUDA numbers the fastest first; give CUDA_DEVICE_ORDER=PCI_BUS_ID"
    if any(is_mig(name) for name in names):
        yield "MIG devices: not looked at whether other processes use them"
