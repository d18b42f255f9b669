"""Report for `arl doctor` what a machine with GPUs has, and what its two environments lack there.

nvidia-smi ─► each GPU ─► compilers ─► /dev/shm ─► the backend's interpreter: NCCL, kernels
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence

from arl.engine.backend import Installation
from arl.errors import InputError
from arl.launch.compilers import INSTALL_COMPILER, c_compiler, install_header, lacks_header
from arl.launch.gpu_devices import Gpu, find_gpus
from arl.launch.gpu_driver import driver_version
from arl.launch.gpu_peers import pairs_without_access
from arl.launch.torch_build import TorchBuild, own_torch, probe_torch, refuse_unequal_nccl
from arl.models.flash_package import FLASH_3, has_flash_3
from arl.run.finding import Finding
from arl.run.gpu_checks import LEAST_SHARED, install_packages
from arl.sync.weight_folders import SHARED_MEMORY

NVCC = "SGLang and flashinfer compile some kernels with it at the first start; install the CUDA toolkit of torch's CUDA"


def gpu_findings(visible: Sequence[str], backends: Sequence[Installation]) -> Iterator[Finding]:
    """Examine what runs on GPUs need; nothing where there are none.

    Args:
        visible: GPUs that torch sees.
        backends: backends that were found, which have an interpreter of their own.
    """
    gpus = find_gpus()
    if not gpus and not visible:
        return
    if gpus is None:
        driver = driver_version() or "unknown"
        yield Finding(True, f"driver {driver}; no nvidia-smi, so names, memory and users of the GPUs are not known")
    for gpu in gpus or ():
        yield Finding(True, _describe(gpu))
    yield from _connections(gpus or ())
    yield from _compilers([sys.executable, *(backend.place for backend in backends)])
    yield _shared_memory()
    ours = own_torch()
    yield Finding(ours.cuda is not None, f"the trainer's {ours}")
    yield _attention()
    for backend in backends:
        yield _other_torch(ours, backend)
        yield _packages(backend)


def _attention() -> Finding:
    """Name the flash attention of the trainer. None is missing, because torch brings version 2."""
    if has_flash_3():
        return Finding(True, f"flash attention 3 of {FLASH_3}, on GPUs of compute capability 9.0")
    return Finding(True, f"flash attention 2 of torch; version 3, for H100 and H200, is in {FLASH_3}")


def _describe(gpu: Gpu) -> str:
    used = f"{gpu.used_bytes / 1e9:.1f} GB used"
    users = ", ".join(map(str, gpu.processes)) or "no process computes on it"
    return f"{gpu}, {used}, driver {gpu.driver}; {users}"


def _connections(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    if len(gpus) < 2:
        return
    pairs = pairs_without_access([gpu.number for gpu in gpus])
    if pairs is None:
        yield Finding(True, "nvidia-smi does not say which GPUs have access to each other's memory")
        return
    named = ", ".join(f"{one} and {other}" for one, other in pairs)
    slow = f"GPUs {named} have no access to each other's memory: NCCL copies by way of the host there"
    yield Finding(True, slow if pairs else f"all {len(gpus)} GPUs have access to each other's memory")


def _compilers(pythons: Sequence[str]) -> Iterator[Finding]:
    compiler = c_compiler()
    remedy = "" if compiler else f"Triton compiles with it on GPUs: {INSTALL_COMPILER}"
    yield Finding(compiler is not None, f"C compiler {compiler or ''}".rstrip(), remedy)
    for python in dict.fromkeys(pythons):
        directory = lacks_header(python)
        if directory is None:
            yield Finding(True, f"Python.h of {python}")
        else:
            yield Finding(
                False, f"Python.h of {python}, in {directory}", f"Triton needs it: {install_header(directory)}"
            )
    nvcc = shutil.which("nvcc")
    yield Finding(True, f"nvcc {nvcc}" if nvcc else f"no nvcc on PATH: {NVCC}")


def _shared_memory() -> Finding:
    if not os.path.isdir(SHARED_MEMORY):
        return Finding(False, f"{SHARED_MEMORY} for NCCL", "start the container with --ipc=host")
    usage = shutil.disk_usage(SHARED_MEMORY)
    what = f"{SHARED_MEMORY} of {usage.total / 1e9:.1f} GB for NCCL, {usage.free / 1e9:.1f} GB free"
    if usage.free >= LEAST_SHARED:
        return Finding(True, what)
    return Finding(False, what, "start the container with --shm-size=16g or --ipc=host")


def _other_torch(ours: TorchBuild, backend: Installation) -> Finding:
    """Compare the torch of a backend with ours, as a broadcast of weights needs it."""
    try:
        theirs = probe_torch(backend.place)
        refuse_unequal_nccl(ours, sys.executable, theirs, backend.place)
    except InputError as error:
        return Finding(False, f"{backend.name} and the trainer in one NCCL group", str(error))
    return Finding(True, f"{backend.name}'s {theirs}, the same NCCL as the trainer's")


def _packages(backend: Installation) -> Finding:
    what = f"packages for GPUs in {backend.place}"
    if not backend.lacking:
        return Finding(True, what)
    return Finding(False, what, install_packages(backend))
