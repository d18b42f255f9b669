"""Put a micro-batch on the device that computes it, by one copy for which the host does not wait.

    arrays of a MicroBatch ─► one flat buffer in host memory, pinned for a GPU ─► one copy ─► views of it

On a CPU the buffer itself is used. torch's allocator of pinned memory gives the buffer of an earlier micro-batch to a
later one only when the GPU has read it.
"""

from typing import NamedTuple

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
    arrays: dict[str, Tensor]  # by field
    columns: dict[str, Tensor]  # (N,) each, without PLACES


def place_batch(batch: MicroBatch, device: torch.device) -> PlacedBatch:
    """Copy a micro-batch to `device`."""
    fields = {name: getattr(batch, name) for name in MicroBatch.__struct_fields__ if name != "columns"}
    columns = {name: column for name, column in batch.columns.items() if name != PLACES}
    named = fields | columns
    sources = [torch.from_numpy(array) for array in named.values()]
    dtypes = [_dtype(name, array) for name, array in named.items()]
    sizes = [len(source) * dtype.itemsize for source, dtype in zip(sources, dtypes, strict=True)]
    padded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
    host = torch.empty(sum(padded), dtype=torch.uint8, pin_memory=device.type == "cuda")

    def views(flat: Tensor) -> list[Tensor]:
        parts = zip(torch.split(flat, padded), sizes, dtypes, strict=True)
        return [part[:size].view(dtype) for part, size, dtype in parts]

    for view, source in zip(views(host), sources, strict=True):
        view.copy_(source)
    copied = dict(zip(named, views(host.to(device, non_blocking=True)), strict=True))
    return PlacedBatch(batch, {name: copied[name] for name in fields}, {name: copied[name] for name in columns})


def _dtype(name: str, array: np.ndarray) -> torch.dtype:
    if name in LAYOUT:
        return torch.int32
    return torch.int64 if array.dtype.kind == "i" else torch.float32
