"""Put a micro-batch on the device that computes it, by one copy for which the host does not wait.

    arrays of a MicroBatch ─► one flat buffer in host memory, pinned for a GPU ─► one copy ─► views of it

On a CPU the buffer itself is used. torch's allocator of pinned memory gives the buffer of an earlier micro-batch to a
later one only when the GPU has read it.
"""

from typing import NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from arl.train.micro_batch import MicroBatch
from arl.train.packing import PLACES

LAYOUT = ("query_offsets", "key_offsets", "key_indices")  # flash attention takes them as int32
ALIGNMENT = 64  # bytes, as torch's own allocators align


class PlacedBatch(NamedTuple):
    """Hold a micro-batch with its arrays on the device: LAYOUT as int32, other integers as int64, the rest float32."""

    host: MicroBatch
    arrays: dict[str, Tensor]  # by field or column, without PLACES


def place_batch(batch: MicroBatch, device: torch.device) -> PlacedBatch:
    """Copy a micro-batch to `device`."""
    named = msgspec.structs.asdict(batch) | batch.columns
    arrays = {name: array for name, array in named.items() if name not in ("columns", "teacher", PLACES)}
    dtypes = [_dtype(name, array) for name, array in arrays.items()]
    sizes = [len(array) * dtype.itemsize for array, dtype in zip(arrays.values(), dtypes, strict=True)]
    padded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    host = torch.empty(sum(padded), dtype=torch.uint8, pin_memory=device.type == "cuda")

    def views(flat: Tensor) -> list[Tensor]:
        parts = zip(torch.split(flat, padded), sizes, dtypes, strict=True)
        return [part[:size].view(dtype) for part, size, dtype in parts]

    for view, array in zip(views(host), arrays.values(), strict=True):
        view.copy_(torch.from_numpy(array))
    copied = views(host.to(device, non_blocking=True))
    return PlacedBatch(batch, dict(zip(arrays, copied, strict=True)))


def _dtype(name: str, array: np.ndarray) -> torch.dtype:
    if name in LAYOUT:
        return torch.int32
    return torch.int64 if array.dtype.kind == "i" else torch.float32
