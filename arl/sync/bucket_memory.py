"""Allocate memory for flat buckets: on this process's GPU, in host pages that a GPU copies from, or on a CPU."""

from collections.abc import Sequence

import torch
from torch import Tensor

from arl.sync.buckets import TensorSpec, bucket_bytes_of
from arl.sync.published_versions import BufferPlace


def allocate_buckets(buckets: Sequence[Sequence[TensorSpec]], place: BufferPlace) -> list[Tensor]:
    """Return memory of exactly the size of each bucket, (bytes of the bucket,) uint8."""
    return [_allocate(bucket_bytes_of(bucket), place) for bucket in buckets]


def _allocate(num_bytes: int, place: BufferPlace) -> Tensor:
    if place == "device":
        return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
    memory = torch.empty(num_bytes, dtype=torch.uint8)
    if torch.cuda.is_available():
        _pin(memory)
    return memory


def _pin(memory: Tensor) -> None:
    """Lock the pages of `memory`, which is never freed, so that a GPU copies to and from them by itself.

    torch's own pinned memory is rounded up to a power of two: a bucket of 1.1 GB would take 2.1 GB.
    """
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    error = runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    torch.cuda.check_error(int(error))


def free_device_bytes() -> int:
    """Return the bytes that are free on this process's GPU, those that torch holds without need included."""
    free, _ = torch.cuda.mem_get_info()
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
