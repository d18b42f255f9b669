"""Refuse a machine whose GPUs torch cannot use, where a run would silently compute on the CPU, or die later.

/dev/nvidia0 …, CUDA_VISIBLE_DEVICES ─► there are GPUs, and they are wanted ─► torch sees them? its CUDA runs here?
"""

import ctypes
import re
from pathlib import Path

from arl.errors import InputError

DEVICES = Path("/dev")
DRIVER = Path("/proc/driver/nvidia/version")
LIBRARY = "libcuda.so.1"
HIDDEN = ("", "-1", "NoDevFiles")  # values of CUDA_VISIBLE_DEVICES that hide all GPUs; Slurm gives the last one
# Oldest driver for each CUDA major, of which all minor versions then run:
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
OLDEST_DRIVERS = {12: 525, 13: 580}
ON_THE_CPU = "give CUDA_VISIBLE_DEVICES= to compute on the CPU"


def refuse_unusable_gpus(
    *,
    num_visible: int,
    torch: str,
    torch_cuda: str | None,
    wanted: str | None,
    devices: Path = DEVICES,
    driver: Path = DRIVER,
    library: str = LIBRARY,
) -> None:
    """Check that torch can use the GPUs of this machine, if it has any and they are wanted.

    Args:
        num_visible: GPUs that torch counts.
        torch: version of torch.
        torch_cuda: the CUDA that torch was built for, as in 13.0; None: built for the CPU.
        wanted: CUDA_VISIBLE_DEVICES; None: it is not set.
        devices: directory of device files.
        driver: the file in which NVIDIA's kernel module says its version.
        library: the driver's library for processes.

    Raises:
        InputError: torch is built for the CPU, sees none of the GPUs, or needs a newer driver.
    """
    found = [path.name for path in sorted(devices.glob("nvidia[0-9]*"))]
    if not found or (wanted is not None and wanted.strip() in HIDDEN):
        return
    here = f"this machine has GPUs ({', '.join(found)})"
    if torch_cuda is None:
        raise InputError(
            f"{here}, and torch {torch} is built for the CPU: install a torch for CUDA (pip install "
            "torch==VERSION --index-url https://download.pytorch.org/whl/cu130, or whl/cu126 with a driver older than "
            f"580), or {ON_THE_CPU}"
        )
    _refuse_old_driver(torch, torch_cuda, driver, library)
    if num_visible == 0:
        names = "is not set" if wanted is None else f"is {wanted!r}"
        raise InputError(
            f"{here}, and torch {torch} sees none of them (CUDA_VISIBLE_DEVICES {names}): give numbers or UUIDs that "
            f"`nvidia-smi -L` lists, and see whether this user may open /dev/{found[0]}; or {ON_THE_CPU}"
        )


def _refuse_old_driver(torch: str, torch_cuda: str, driver: Path, library: str) -> None:
    """Raise InputError if the driver is older than torch's CUDA needs, and no compatibility package helps."""
    major = int(torch_cuda.partition(".")[0])
    oldest = OLDEST_DRIVERS.get(major)
    version = driver_version(driver)
    if oldest is None or version is None or int(version.partition(".")[0]) >= oldest:
        return
    supported = cuda_of_library(library)
    if supported is not None and supported >= major:
        return  # NVIDIA's cuda-compat package: a newer library above an older kernel module
    wheel = "cu126" if major > 12 and int(version.partition(".")[0]) >= OLDEST_DRIVERS[12] else "an older CUDA"
    raise InputError(
        f"NVIDIA driver {version}: torch {torch} is built for CUDA {torch_cuda}, which needs driver {oldest} or newer; "
        f"update the driver, install a torch for {wheel} (https://download.pytorch.org/whl), or {ON_THE_CPU}"
    )


def driver_version(file: Path = DRIVER) -> str | None:
    """Return the version of NVIDIA's kernel module, as in 580.65.06; None: it is not loaded, or does not say."""
    try:
        text = file.read_text()
    except OSError:
        return None
    found = re.search(r"Kernel Module\b.*?\s(\d+(?:\.\d+)+)\s", text)
    return found[1] if found else None


def cuda_of_library(library: str = LIBRARY) -> int | None:
    """Return the newest CUDA major that the driver's library supports; None: there is no library.

    The call neither initializes CUDA nor makes a context.
    """
    version = ctypes.c_int(0)
    try:
        failed = ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else version.value // 1000
