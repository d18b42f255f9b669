"""Look at what runs on GPUs need, before anything starts: `arl doctor` prints what is found, preflight raises it.

Nothing here touches CUDA, because the controller must hold no CUDA context.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence

from msgspec import Struct

from arl.config.recipe import Recipe
from arl.engine.backend import Installation
from arl.errors import InputError
from arl.launch.devices import Gpu, driver_version, find_gpus, named_gpus, pairs_without_access, refuse_busy
from arl.launch.placement import Placement
from arl.launch.torch_build import TorchBuild, own_torch, probe_torch, refuse_unequal_nccl
from arl.models.flash import FLASH_3, has_flash_3
from arl.sync.publication_directory import SHARED_MEMORY
from arl.types import Transport

MIN_SHARED = 1_000_000_000  # bytes that NVIDIA advises for NCCL: docker run --shm-size=1g
NO_SHARED_MEMORY = "NCCL_SHM_DISABLE"
NOT_LOOKED = "NVML does not answer: not looked at whether other processes use the GPUs, and how they are connected"


class Finding(Struct, frozen=True):
    """Hold one line of the report of `arl doctor`, and the commands that help if it is not good."""

    good: bool
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        state = "ok     " if self.good else "MISSING"
        remedy = f"\n{self.remedy}" if self.remedy else ""
        return f"{state}  {self.what}{remedy}"


class GpuReport(Struct, frozen=True):
    """Hold what was found out about the GPUs of a run."""

    gpus: tuple[Gpu, ...] = ()  # those that the run uses, as far as the driver knows them
    notes: tuple[str, ...] = ()


def gpu_checks(backends: Sequence[Installation], uses_nccl: bool, broadcasts: bool) -> Iterator[Finding]:
    """Check what runs on GPUs need of this machine, in the order in which preflight raises it.

    Args:
        backends: engines that are installed; those with an interpreter of their own have packages of their own.
        uses_nccl: processes form an NCCL group, on one node or over several.
        broadcasts: engines and the trainer are in one group, so that both need the same NCCL.
    """
    yield _compiler()
    for backend in backends:
        yield _packages(backend)
    if uses_nccl:
        yield _shared_memory()
    for backend in backends:
        if broadcasts and backend.capabilities.own_interpreter:
            yield _same_nccl(own_torch(), backend)


def check_gpus(recipe: Recipe, placement: Placement, transport: Transport, backend: Installation) -> GpuReport:
    """Check the GPUs of a run, and what it needs on them.

    Raises:
        InputError: another process uses a GPU, or the first of `gpu_checks` that is not good.
    """
    names = placement.devices_of(0)
    if not names:
        return GpuReport()
    width = len(placement.engines[0].devices)
    forms_group = len(placement.ranks) > 1 or width > 1 or transport == "broadcast"
    environments = (recipe.train.environment, recipe.engine.environment, os.environ)
    uses_nccl = forms_group and not any(one.get(NO_SHARED_MEMORY) == "1" for one in environments)
    for finding in gpu_checks([backend], uses_nccl, transport == "broadcast"):
        if not finding.good:
            raise InputError(f"missing: {finding.what}; {finding.remedy}")
    found = find_gpus()
    if found is None:
        return GpuReport(notes=(NOT_LOOKED,))
    used = named_gpus(found, names)
    notes = [note for gpu in used for note in refuse_busy(gpu)]
    if slow := _slow_pairs(used):
        notes.append(slow)
    return GpuReport(tuple(used), tuple(notes))


def gpu_findings(visible: Sequence[str], backends: Sequence[Installation]) -> Iterator[Finding]:
    """Describe the GPUs of this machine, and check what runs on them need; nothing where there are none.

    Args:
        visible: GPUs that torch sees.
        backends: see `gpu_checks`.
    """
    gpus = find_gpus()
    if not gpus and not visible:
        return
    if gpus is None:
        yield Finding(True, NOT_LOOKED)
    for gpu in gpus or ():
        users = ", ".join(map(str, gpu.processes)) or "no process computes on it"
        yield Finding(True, f"{gpu}, {gpu.used_bytes / 1e9:.1f} GB used, driver {driver_version()}; {users}")
    if gpus and len(gpus) > 1:
        yield Finding(True, _slow_pairs(gpus) or f"all {len(gpus)} GPUs have access to each other's memory")
    ours = own_torch()
    yield Finding(ours.cuda is not None, f"the trainer's {ours}")
    if has_flash_3():
        yield Finding(True, f"flash attention 3 of {FLASH_3}, on GPUs of compute capability 9.0")
    else:
        yield Finding(True, f"flash attention 2 of torch; version 3, for H100 and H200, is in {FLASH_3}")
    yield from gpu_checks(backends, uses_nccl=True, broadcasts=True)


def _compiler() -> Finding:
    """Look for the C compiler that Triton would take: CC, gcc or clang."""
    chosen = os.environ.get("CC", "").split()
    found = shutil.which(chosen[0]) if chosen else shutil.which("gcc") or shutil.which("clang")
    what = "C compiler, with which Triton compiles on GPUs"
    remedy = "install one and Python's headers (apt install gcc python3-dev), or name one in CC"
    return Finding(True, f"{what}: {found}") if found else Finding(False, what, remedy)


def _packages(backend: Installation) -> Finding:
    what = f"packages for GPUs in {backend.place}"
    if not backend.lacking:
        return Finding(True, what)
    names = " ".join(f"'{requirement}'" for requirement in backend.lacking)
    return Finding(False, f"{what}: {', '.join(backend.lacking)}", f"{backend.place} -m pip install {names}")


def _shared_memory() -> Finding:
    """Look at /dev/shm, by which NCCL moves data between GPUs without peer access."""
    if not os.path.isdir(SHARED_MEMORY):
        return Finding(False, f"{SHARED_MEMORY} for NCCL", "start the container with --ipc=host")
    free = shutil.disk_usage(SHARED_MEMORY).free
    remedy = (
        f"it needs about {MIN_SHARED / 1e9:.0f} GB: start the container with --shm-size=16g or --ipc=host, or set "
        f"{NO_SHARED_MEMORY}=1 for `arl train`, which is slower"
    )
    is_enough = free >= MIN_SHARED
    return Finding(is_enough, f"{SHARED_MEMORY} for NCCL, {free / 1e9:.2f} GB free", "" if is_enough else remedy)


def _same_nccl(ours: TorchBuild, backend: Installation) -> Finding:
    """Compare the torch of a backend with ours, as a broadcast of weights needs it."""
    try:
        theirs = probe_torch(backend.place)
        refuse_unequal_nccl(ours, sys.executable, theirs, backend.place)
    except InputError as error:
        return Finding(False, f"{backend.name} and the trainer in one NCCL group", str(error))
    return Finding(True, f"{backend.name}'s {theirs}, the same NCCL as the trainer's")


def _slow_pairs(gpus: Sequence[Gpu]) -> str:
    """Name the pairs of GPUs between which NCCL is slow; empty: there are none."""
    named = ", ".join(f"{one} and {other}" for one, other in pairs_without_access([gpu.number for gpu in gpus]))
    return named and (
        f"GPUs {named}: no access to each other's memory, so NCCL copies by way of the host: gradients, tensor "
        "parallelism and broadcasts of weights are slower"
    )
