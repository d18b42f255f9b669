"""Find the cores and devices that this process may use."""

import contextlib
import os
from collections.abc import Iterator

from arl.launch.gpu_driver import refuse_unusable_gpus

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def visible_cores() -> int:
    """Return the number of CPU cores on which this process may run."""
    return len(os.sched_getaffinity(0))


def core_numbers() -> tuple[int, ...]:
    """Return the numbers of the CPU cores on which this process may run."""
    return tuple(sorted(os.sched_getaffinity(0)))


def visible_devices() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them: by number, UUID or MIG.

    torch counts them through NVML, without a CUDA context; MIG devices through the driver, also without one.

    Raises:
        InputError: this machine has GPUs that torch cannot use.
    """
    import torch  # importing it takes a second, so only this path does

    count = torch.cuda.device_count()
    refuse_unusable_gpus(
        num_visible=count,
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        wanted=os.environ.get(VISIBLE_DEVICES),
    )
    parts = [part.strip() for part in os.environ.get(VISIBLE_DEVICES, "").split(",")]
    named = [part for part in parts if part]
    numbered = [str(i) for i in range(count)]
    names = named or numbered
    if count and names[0].startswith("MIG-"):
        return tuple(names)  # a process sees one MIG device, so torch counts one; each process gets another one
    return tuple(names[:count])  # torch ignores what follows a name that is no device


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
