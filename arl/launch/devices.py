"""Find the cores and devices that this process may use.

Where torch cannot use GPUs that are there and wanted, a run would silently compute on the CPU, or die later.
"""

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from arl.errors import InputError
from arl.launch.gpu_devices import driver_version, find_gpus

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
DEVICE_FILES = "nvidia[0-9]*"
HIDING = ("", "-1", "NoDevFiles")  # values of CUDA_VISIBLE_DEVICES that hide all GPUs; Slurm gives the last one
ON_THE_CPU = "give CUDA_VISIBLE_DEVICES= to compute on the CPU"


def visible_cores() -> int:
    """Return the number of CPU cores on which this process may run."""
    return len(os.sched_getaffinity(0))


def core_numbers() -> tuple[int, ...]:
    """Return the numbers of the CPU cores on which this process may run."""
    return tuple(sorted(os.sched_getaffinity(0)))


def visible_devices() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them: by number or UUID.

    torch counts them through NVML, without a CUDA context.

    Raises:
        InputError: this machine has GPUs that torch cannot use.
    """
    if not any(Path("/dev").glob(DEVICE_FILES)) and find_gpus() is None:
        return ()  # neither devices nor a driver, so torch, which takes seconds to import, can know of none
    import torch

    count = torch.cuda.device_count()
    wanted = os.environ.get(VISIBLE_DEVICES)
    refuse_unusable_gpus(torch.__version__, torch.version.cuda, count, wanted)
    parts = [part.strip() for part in (wanted or "").split(",")]
    named = [part for part in parts if part]
    numbered = [str(i) for i in range(count)]
    return tuple((named or numbered)[:count])  # torch ignores what follows a name that is no device


def refuse_unusable_gpus(
    torch: str, torch_cuda: str | None, num_visible: int, wanted: str | None, devices: Path = Path("/dev")
) -> None:
    """Check that torch can use the GPUs of this machine, if it has any and they are wanted.

    Args:
        torch: version of torch.
        torch_cuda: the CUDA that torch was built for, as in 13.0; None: built for the CPU.
        num_visible: GPUs that torch counts.
        wanted: CUDA_VISIBLE_DEVICES; None: it is not set.
        devices: directory of device files.

    Raises:
        InputError: torch is built for the CPU, sees none of the GPUs, or needs a newer driver.
    """
    found = [path.name for path in devices.glob(DEVICE_FILES)]
    if not found or (wanted is not None and wanted.strip() in HIDING):
        return
    here = f"this machine has GPUs ({', '.join(found)})"
    if torch_cuda is None:
        raise InputError(
            f"{here}, and torch {torch} is built for the CPU: install a torch for CUDA (pip install torch==VERSION "
            f"--index-url https://download.pytorch.org/whl/cu130, or whl/cu126 with an older driver), or {ON_THE_CPU}"
        )
    newest = _cuda_of_driver()
    if newest is not None and newest < int(torch_cuda.partition(".")[0]):
        raise InputError(
            f"NVIDIA driver {driver_version()}: it runs CUDA {newest} at most, and torch {torch} is built for CUDA "
            f"{torch_cuda}; update the driver, install a torch for an older CUDA (https://download.pytorch.org/whl), "
            f"or {ON_THE_CPU}"
        )
    if num_visible == 0:
        names = "is not set" if wanted is None else f"is {wanted!r}"
        raise InputError(
            f"{here}, and torch {torch} sees none of them (CUDA_VISIBLE_DEVICES {names}): give numbers or UUIDs that "
            f"`nvidia-smi -L` lists, and see whether this user may open /dev/{found[0]}; or {ON_THE_CPU}"
        )


def _cuda_of_driver() -> int | None:
    """Return the newest CUDA major that the driver's library runs; None: there is none. It makes no CUDA context."""
    version = ctypes.c_int(0)
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else version.value // 1000


@contextlib.contextmanager
def hidden_devices() -> Iterator[None]:
    """Hide every GPU from this process, and from those that it starts meanwhile."""
    before = os.environ.get(VISIBLE_DEVICES)
    os.environ[VISIBLE_DEVICES] = ""
    try:
        yield
    finally:
        if before is None:
            del os.environ[VISIBLE_DEVICES]
        else:
            os.environ[VISIBLE_DEVICES] = before
