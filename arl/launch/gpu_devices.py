"""Ask nvidia-smi for the GPUs of this machine, and for the processes on them. Nothing here touches CUDA.

nvidia-smi ─► Gpu: number, UUID, name, memory, driver, MIG ─► GpuProcess: pid, name, memory

The controller of a run must hold no CUDA context, which takes half a gigabyte of a device. nvidia-smi reads the driver
in a process of its own.
"""

import csv
import shutil
import subprocess
from collections.abc import Iterator, Sequence

from msgspec import Struct

SECONDS = 30.0  # an unused driver takes seconds to load
MEBIBYTE = 1 << 20
GPU_FIELDS = "index,uuid,name,memory.total,memory.used,driver_version,mig.mode.current"
PROCESS_FIELDS = "gpu_uuid,pid,process_name,used_memory"
FORMAT = "--format=csv,noheader,nounits"


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

    >>> str(Gpu(0, "GPU-1a", "NVIDIA H200", 150_754_820_096, 0, "580.65.06"))
    'GPU 0 NVIDIA H200, 150.8 GB'
    """

    number: int  # nvidia-smi's, in the order of the PCI bus
    uuid: str
    name: str
    total_bytes: int  # 0: the driver does not say, as where CPU and GPU share their memory
    used_bytes: int
    driver: str  # version
    is_divided: bool = False  # into MIG devices
    processes: tuple[GpuProcess, ...] = ()

    def __str__(self) -> str:
        divided = ", divided into MIG devices" if self.is_divided else ""
        return f"GPU {self.number} {self.name}, {self.total_bytes / 1e9:.1f} GB{divided}"

    @property
    def unexplained_bytes(self) -> int:
        """Return the memory in use that no listed process accounts for."""
        listed = sum(process.used_bytes or 0 for process in self.processes)
        return max(self.used_bytes - listed, 0)


def find_gpus() -> list[Gpu] | None:
    """Return the GPUs that nvidia-smi lists; None: there is no nvidia-smi, or it fails."""
    rows = _query(f"--query-gpu={GPU_FIELDS}")
    if rows is None:
        return None
    processes = _processes()
    return [_gpu(row, processes) for row in rows]


def named_gpus(gpus: Sequence[Gpu], names: Sequence[str]) -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names by number or UUID, in its order; MIG devices are left out.

    A UUID may be shortened, as CUDA allows.
    """
    found = []
    for name in names:
        found += [gpu for gpu in gpus if _is_named(gpu, name)][:1]
    return found


def _is_named(gpu: Gpu, name: str) -> bool:
    if name.isdecimal():
        return gpu.number == int(name)
    return gpu.uuid.startswith(name)


def _gpu(row: list[str], processes: dict[str, list[GpuProcess]]) -> Gpu:
    number, uuid, name, total, used, driver, mig = row
    return Gpu(
        number=int(number),
        uuid=uuid,
        name=name,
        total_bytes=_bytes(total) or 0,
        used_bytes=_bytes(used) or 0,
        driver=driver,
        is_divided=mig == "Enabled",
        processes=tuple(processes.get(uuid, ())),
    )


def _processes() -> dict[str, list[GpuProcess]]:
    """Return the processes by UUID of their GPU."""
    found: dict[str, list[GpuProcess]] = {}
    for uuid, pid, name, used in _query(f"--query-compute-apps={PROCESS_FIELDS}") or []:
        found.setdefault(uuid, []).append(GpuProcess(int(pid), name, _bytes(used)))
    return found


def _bytes(mebibytes: str) -> int | None:
    """Return bytes; None where nvidia-smi writes [N/A]."""
    return int(mebibytes) * MEBIBYTE if mebibytes.isdecimal() else None


def _query(query: str) -> list[list[str]] | None:
    """Return the rows of one query; None: nvidia-smi is not there, or fails."""
    output = run_nvidia_smi(query, FORMAT)
    return None if output is None else list(_rows(output))


def _rows(output: str) -> Iterator[list[str]]:
    for row in csv.reader(output.splitlines(), skipinitialspace=True):
        if row:
            yield [cell.strip() for cell in row]


def run_nvidia_smi(*arguments: str) -> str | None:
    """Return what nvidia-smi prints; None: it is not on PATH, fails, or takes longer than half a minute."""
    path = shutil.which("nvidia-smi")
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
