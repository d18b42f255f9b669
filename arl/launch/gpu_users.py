"""Refuse GPUs that somebody else uses, so that a run does not end for lack of memory an hour later. Torch-free."""

from collections.abc import Iterator, Sequence

from arl.errors import InputError
from arl.launch.gpu_devices import Gpu, GpuProcess

MUCH = 1_000_000_000  # bytes of a GPU that somebody else may use without harm, as a display does
CHOOSE = "end it, or choose other GPUs with CUDA_VISIBLE_DEVICES"


def refuse_busy(gpu: Gpu) -> Iterator[str]:
    """Yield a note if somebody uses a little of a GPU.

    Raises:
        InputError: a process uses more than a gigabyte of it, or somebody whom nvidia-smi does not list; or only parts
            of it can be used.
    """
    if gpu.is_divided:
        raise InputError(f"{gpu}: name the MIG devices in CUDA_VISIBLE_DEVICES; `nvidia-smi -L` lists their UUIDs")
    large = [process for process in gpu.processes if process.used_bytes is None or process.used_bytes > MUCH]
    if large:
        raise InputError(f"{gpu}: is in use by {_joined(large)}; {CHOOSE}")
    if gpu.unexplained_bytes > MUCH:
        raise InputError(
            f"{gpu}: {gpu.unexplained_bytes / 1e9:.1f} GB are in use by processes that nvidia-smi does not list, of "
            f"another container or user; {CHOOSE}"
        )
    if gpu.processes:
        yield f"{gpu}: also used by {_joined(gpu.processes)}"


def _joined(processes: Sequence[GpuProcess]) -> str:
    return ", ".join(map(str, processes))
