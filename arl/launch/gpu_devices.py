"""Ask NVML, the driver's library, for the GPUs of this machine and for the processes on them.

Nothing here touches CUDA: the controller of a run must hold no CUDA context, which takes half a gigabyte of a device.
"""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations
from typing import Any

import pynvml  # type: ignore[import-untyped]
from msgspec import Struct

from arl.errors import InputError

MUCH = 1_000_000_000  # bytes of a GPU that somebody else may use without harm, as a display does
CHOOSE = "end it, or choose other GPUs with CUDA_VISIBLE_DEVICES"


class GpuProcess(Struct, frozen=True):
    """Describe a process that computes on a GPU.

    >>> str(GpuProcess(4711, "python3", 30_000_000_000))
    'pid 4711 (python3) with 30.0 GB'
    """

    pid: int
    name: str
    used_bytes: int | None  # None: the driver does not say, as in some containers

    def __str__(self) -> str:
        memory = "" if self.used_bytes is None else f" with {self.used_bytes / 1e9:.1f} GB"
        return f"pid {self.pid} ({self.name}){memory}"


class Gpu(Struct, frozen=True):
    """Describe one GPU.

    >>> str(Gpu(0, "GPU-1a", "NVIDIA H200", 150_754_820_096, 0))
    'GPU 0 NVIDIA H200, 150.8 GB'
    """

    number: int  # NVML's, in the order of the PCI bus
    uuid: str
    name: str
    total_bytes: int  # 0: the driver does not say, as where CPU and GPU share their memory
    used_bytes: int
    processes: tuple[GpuProcess, ...] = ()

    def __str__(self) -> str:
        return f"GPU {self.number} {self.name}, {self.total_bytes / 1e9:.1f} GB"


@contextlib.contextmanager
def _nvml() -> Iterator[bool]:
    """Open NVML for the block; False: there is none, or no driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        pynvml.nvmlShutdown()


def find_gpus() -> list[Gpu] | None:
    """Return the GPUs of this machine; None: there is no driver that could say."""
    with _nvml() as is_there:
        return [_gpu(number) for number in range(pynvml.nvmlDeviceGetCount())] if is_there else None


def driver_version() -> str | None:
    """Return the version of the driver, as in 580.65.06; None: there is none."""
    with _nvml() as is_there:
        return str(pynvml.nvmlSystemGetDriverVersion()) if is_there else None


def named_gpus(gpus: Sequence[Gpu], names: Sequence[str]) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names by number or UUID, in its order.

    A UUID may be shortened, as CUDA allows.
    """
    found = []
    for name in names:
        found += [gpu for gpu in gpus if name == str(gpu.number) or gpu.uuid.startswith(name)][:1]
    return found


def smallest_device(names: Sequence[str]) -> tuple[str, int] | None:
    """Return name and bytes of the GPU with the least memory among `names`; None: that of none is known.

    Args:
        names: as CUDA_VISIBLE_DEVICES gives them.
    """
    known = [gpu for gpu in named_gpus(find_gpus() or (), names) if gpu.total_bytes]
    if not known:
        return None
    smallest = min(known, key=lambda gpu: gpu.total_bytes)
    return smallest.name, smallest.total_bytes


def pairs_without_access(numbers: Collection[int]) -> list[tuple[int, int]]:
    """Return the pairs of these GPUs that cannot read each other's memory. NCCL asks the driver the same question."""
    found = []
    with _nvml():
        for one, other in combinations(sorted(numbers), 2):
            first, second = (pynvml.nvmlDeviceGetHandleByIndex(number) for number in (one, other))
            status = pynvml.nvmlDeviceGetP2PStatus(first, second, pynvml.NVML_P2P_CAPS_INDEX_READ)
            if status != pynvml.NVML_P2P_STATUS_OK:
                found.append((one, other))
    return found


def refuse_busy(gpu: Gpu) -> Iterator[str]:
    """Yield a note if somebody uses a little of a GPU.

    Raises:
        InputError: a process uses more than a gigabyte of it, or somebody whom the driver does not list.
    """
    large = [process for process in gpu.processes if process.used_bytes is None or process.used_bytes > MUCH]
    if large:
        raise InputError(f"{gpu}: is in use by {', '.join(map(str, large))}; {CHOOSE}")
    unexplained = gpu.used_bytes - sum(process.used_bytes or 0 for process in gpu.processes)
    if unexplained > MUCH:
        raise InputError(
            f"{gpu}: {unexplained / 1e9:.1f} GB are in use by processes that the driver does not list, of another "
            f"container or user; {CHOOSE}"
        )
    if gpu.processes:
        yield f"{gpu}: also used by {', '.join(map(str, gpu.processes))}"


def _gpu(number: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)  # without what the driver keeps
        total, used = memory.total, memory.used
    except pynvml.NVMLError:  # CPU and GPU share their memory
        total, used = 0, 0
    name = pynvml.nvmlDeviceGetName(handle)
    return Gpu(number, pynvml.nvmlDeviceGetUUID(handle), name, total, used, tuple(_processes(handle)))


def _processes(handle: Any) -> Iterator[GpuProcess]:
    with contextlib.suppress(pynvml.NVMLError):  # the driver does not list them
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            try:
                name = pynvml.nvmlSystemGetProcessName(process.pid)
            except pynvml.NVMLError:  # of another container
                name = "?"
            yield GpuProcess(process.pid, name, process.usedGpuMemory)
