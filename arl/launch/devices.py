"""Find the cores, the GPUs and the memory that this process may use, and who uses the GPUs.

NVML, the driver's library, knows the GPUs and the processes on them. Nothing here but torch's own count touches CUDA:
the controller of a run must hold no CUDA context, which takes half a gigabyte of a device. Where torch cannot use GPUs
that are there and wanted, a run would silently compute on the CPU, or die later.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pynvml  # type: ignore[import-untyped]
from msgspec import Struct

from arl.errors import InputError
from arl.launch.child import CORES

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
DEVICE_FILES = "nvidia[0-9]*"
HIDING = ("", "-1", "NoDevFiles")  # values of CUDA_VISIBLE_DEVICES that hide all GPUs; Slurm gives the last one
ON_THE_CPU = "give CUDA_VISIBLE_DEVICES= to compute on the CPU"
MUCH = 1_000_000_000  # bytes of a GPU that others may use without harm, as a display does


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
    processes: tuple[str, ...] = ()  # as in pid 4711 (python3); without those that the driver does not list

    def __str__(self) -> str:
        return f"GPU {self.number} {self.name}, {self.total_bytes / 1e9:.1f} GB"


def core_numbers() -> tuple[int, ...]:
    """Return the numbers of the CPU cores on which this process may run."""
    return tuple(sorted(os.sched_getaffinity(0)))


def visible_cores(root: Path = Path("/")) -> int:
    """Return the number of CPU cores on which this process may run, no more than its quotas of CPU time allow.

    More threads than that would wait for each other while the kernel holds some of them back.
    """
    return max(int(min([len(core_numbers()), *_allowed("cpu", _quota, root)])), 1)


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process and those it starts may still use, on this host and in their control groups.

    File caches count as free, because Linux drops them when memory is needed.
    """
    return int(min([psutil.virtual_memory().available, *_allowed("memory", _left, root)]))


def _allowed(controller: str, read: Callable[[Path], float], root: Path) -> Iterator[float]:
    """Yield what each of this process's control groups allows, and each around it, as far as they are visible.

    Version 1 has a tree for each controller, version 2 one for all.
    """
    if not (root / "proc/self/cgroup").exists():  # a kernel without control groups
        return
    own = [line.split(":", 2)[1:] for line in (root / "proc/self/cgroup").read_text().splitlines()]
    for mount in (root / "proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = mount.split()
        tree = {"cgroup": controller, "cgroup2": ""}.get(kind)
        top = root / place[1:]
        for controllers, path in own:
            if tree in controllers.split(",") and (not tree or tree in options.split(",")):
                group = top / path[1:]  # in a container this may be the path outside of it: then only the top exists
                for each in (group, *group.parents):
                    if each.is_relative_to(top):
                        with contextlib.suppress(OSError, ValueError):  # it has no such file, or no limit: "max"
                            yield read(each)


def _quota(group: Path) -> float:
    """Return the cores whose time a control group may use; version 1 writes -1 where it has no limit."""
    files = ["cpu.max"] if (group / "cpu.max").is_file() else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
    quota, period = " ".join((group / file).read_text() for file in files).split()
    return int(quota) / int(period) if int(quota) > 0 else math.inf


def _left(group: Path) -> float:
    """Return the bytes that a control group may still use."""
    files = ("memory.max", "memory.current", "inactive_file")
    if not (group / files[0]).is_file():
        files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    limit, used = (int((group / file).read_text()) for file in files[:2])
    statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return limit - used + int(statistics[files[2]])


def peak_resident() -> int:
    """Return the most bytes that this process ever had resident. ru_maxrss begins with the parent's."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmHWM"].split()[0])


def visible_devices() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them: by number or UUID.

    torch counts them through NVML, without a CUDA context.

    Raises:
        InputError: this machine has GPUs that torch cannot use.
    """
    files = [path.name for path in Path("/dev").glob(DEVICE_FILES)]
    if not files and not find_gpus():
        return ()  # neither devices nor a driver, so torch, which takes seconds to import, can know of none
    import torch

    count = torch.cuda.device_count()
    wanted = os.environ.get(VISIBLE_DEVICES)
    if files:
        refuse_unusable_gpus(files, count, torch.__version__, torch.version.cuda, wanted)
    named = [part.strip() for part in (wanted or "").split(",") if part.strip()]
    return tuple(named or map(str, range(count)))[:count]  # torch ignores what follows a name that is no device


def newest_cuda() -> int | None:
    """Return the newest CUDA major that the driver runs; None: there is no driver, or no GPU."""
    return int(pynvml.nvmlSystemGetCudaDriverVersion_v2()) // 1000 if find_gpus() else None


def refuse_unusable_gpus(
    files: Sequence[str], count: int, torch: str, torch_cuda: str | None, wanted: str | None
) -> None:
    """Refuse GPUs that are there and wanted, and that torch cannot use.

    Args:
        files: names of the GPUs' device files.
        count: GPUs that torch counts; it asks NVML, so a driver that is too old for torch hides none.
        torch: version of torch.
        torch_cuda: the CUDA that torch was built for, as in 13.0; None: built for the CPU.
        wanted: CUDA_VISIBLE_DEVICES; None: it is not set.

    Raises:
        InputError: torch is built for the CPU or for a newer driver, or sees none of the GPUs.
    """
    if wanted is not None and wanted.strip() in HIDING:
        return
    here = f"this machine has GPUs ({', '.join(files)})"
    if torch_cuda is None:
        raise InputError(
            f"{here}, and torch {torch} is built for the CPU: install a torch for CUDA (pip install torch==VERSION "
            f"--index-url https://download.pytorch.org/whl/cu130, or whl/cu126 with an older driver), or {ON_THE_CPU}"
        )
    newest = newest_cuda()
    if newest is not None and newest < int(torch_cuda.partition(".")[0]):
        raise InputError(
            f"NVIDIA driver {driver_version()}: it runs CUDA {newest} at most, and torch {torch} is built for CUDA "
            f"{torch_cuda}; update the driver, install a torch for an older CUDA (https://download.pytorch.org/whl), "
            f"or {ON_THE_CPU}"
        )
    if count:
        return
    names = "is not set" if wanted is None else f"is {wanted!r}"
    raise InputError(
        f"{here}, and torch {torch} sees none of them (CUDA_VISIBLE_DEVICES {names}): give numbers or UUIDs that "
        f"`nvidia-smi -L` lists, and see whether this user may open /dev/{files[0]}; or {ON_THE_CPU}"
    )


@contextlib.contextmanager
def hidden_devices() -> Iterator[None]:
    """Hide every GPU from this process, and from those that it starts meanwhile."""
    before = os.environ.get(VISIBLE_DEVICES)
    os.environ[VISIBLE_DEVICES] = ""
    try:
        yield
    finally:
        del os.environ[VISIBLE_DEVICES]
        if before is not None:
            os.environ[VISIBLE_DEVICES] = before


def driver_version() -> str:
    """Return the version of the driver, as in 580.65.06, where `find_gpus` has found one."""
    return str(pynvml.nvmlSystemGetDriverVersion())


def find_gpus(names: Sequence[str] | None = None) -> list[Gpu]:
    """Return the GPUs of this machine, or those that CUDA_VISIBLE_DEVICES names by number or UUID, in its order.

    A UUID may be shortened, as CUDA allows. Without a driver there are none.
    """
    try:
        pynvml.nvmlInit()  # the process keeps it
    except pynvml.NVMLError:
        return []
    gpus = [_gpu(number) for number in range(pynvml.nvmlDeviceGetCount())]
    if names is None:
        return gpus
    return [gpu for name in names for gpu in gpus if name == str(gpu.number) or gpu.uuid.startswith(name)]


def stay_near_gpu() -> None:
    """Keep this thread, and those that it starts, to those of its cores that are on the NUMA node of its only GPU.

    Memory that it pins is then there as well. Where the driver does not say, or all such cores are denied, nothing
    changes.
    """
    gpus = find_gpus((os.environ.get(VISIBLE_DEVICES) or "-1").split(","))
    if len(gpus) != 1:
        return
    own = os.sched_getaffinity(0)
    handle = pynvml.nvmlDeviceGetHandleByIndex(gpus[0].number)
    with contextlib.suppress(pynvml.NVMLError):
        masks = pynvml.nvmlDeviceGetCpuAffinity(handle, max(own) // 64 + 1)  # a bit for each core of the machine
        near = {core for core in own if masks[core // 64] >> core % 64 & 1}
        os.sched_setaffinity(0, near or own)


def refuse_busy(gpu: Gpu) -> None:
    """Refuse a GPU of which other processes use more than a gigabyte.

    Raises:
        InputError: they do.
    """
    if gpu.used_bytes > MUCH:
        users = ", ".join(gpu.processes) or "processes that the driver does not list, of another container or user"
        raise InputError(
            f"{gpu}: is in use by {users} with {gpu.used_bytes / 1e9:.1f} GB; end it, or choose other GPUs with "
            f"{VISIBLE_DEVICES}"
        )


def _gpu(number: int) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    total = 0
    used = 0
    processes: list[str] = []
    with contextlib.suppress(pynvml.NVMLError):  # CPU and GPU share their memory, or the driver lists no processes
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)  # without what the driver keeps
        total = memory.total
        used = memory.used
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            processes.append(f"pid {process.pid} ({_name(process.pid)})")
    name = pynvml.nvmlDeviceGetName(handle)
    return Gpu(number, pynvml.nvmlDeviceGetUUID(handle), name, total, used, tuple(processes))


def _name(pid: int) -> str:
    try:
        return str(pynvml.nvmlSystemGetProcessName(pid))
    except pynvml.NVMLError:  # of another container
        return "?"


@dataclass(frozen=True)
class Share:
    """Hold what one of several commands that run side by side on this machine may use.

    Args:
        cores: numbers of CPU cores; empty: all that this process may use.
        devices: GPUs, as CUDA_VISIBLE_DEVICES names them; empty: there are none to divide.
    """

    cores: tuple[int, ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables that keep a command to its share; arl.launch.child applies them."""
        cores = {CORES: ",".join(map(str, self.cores))} if self.cores else {}
        devices = {VISIBLE_DEVICES: ",".join(self.devices)} if self.devices else {}
        return {**cores, **devices}


def divide(jobs: int, cores: Sequence[int], devices: Sequence[str] = ()) -> list[Share]:
    """Divide cores and devices between `jobs` commands.

    Each command gets equally many cores, and those that are left over stay idle, because the number of cores decides
    how fast a run is, and the weights of a tiny model's warm-up. With more commands than cores, several commands share
    a core. A device belongs to one command; all of them are used.

    Raises:
        InputError: there are devices, but fewer than commands.
    """
    if devices and jobs > len(devices):
        raise InputError(
            f"--jobs {jobs}: each run needs a GPU of its own, and {len(devices)} are visible; give --jobs "
            f"{len(devices)}, or CUDA_VISIBLE_DEVICES= for the CPU"
        )
    cores_each = max(len(cores) // jobs, 1)
    shares = []
    for job in range(jobs):
        first = job * cores_each % len(cores)
        own_devices = devices[len(devices) * job // jobs : len(devices) * (job + 1) // jobs]  # neighbors
        shares.append(Share(tuple(cores[first : first + cores_each]), tuple(own_devices)))
    return shares
