"""Describe weights without their values: names and shapes, the buckets in which they travel, checksums.

Importing it does not import torch, because the controller's side does so.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from arl.errors import EngineError
from arl.types import WeightUpdate

HANDLES = "handles"  # the file in which a rank's handles of all weights lie
BUCKET_BYTES = 512 * 10**6  # of one bucket at most, unless a single tensor is larger
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class TensorSpec(Struct, frozen=True):
    """Describe a weight without its values."""

    name: str
    dtype: str  # torch's name of it; one of ITEM_BYTES
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def make_buckets(specs: Sequence[TensorSpec], num_bytes: int) -> list[list[TensorSpec]]:
    """Cut `specs`, in their order, where a bucket would exceed `num_bytes`. A larger tensor has a bucket of its own.

    >>> specs = [TensorSpec(str(i), "bfloat16", (size,)) for i, size in enumerate((3, 2, 9, 1))]
    >>> [[spec.name for spec in bucket] for bucket in make_buckets(specs, 10)]
    [['0', '1'], ['2'], ['3']]
    """
    buckets: list[list[TensorSpec]] = []
    free = 0
    for spec in specs:
        if not buckets or spec.num_bytes > free:
            buckets.append([])
            free = num_bytes
        buckets[-1].append(spec)
        free -= spec.num_bytes
    return buckets


def bucket_bytes_of(bucket: Sequence[TensorSpec]) -> int:
    """Return the bytes of a bucket's tensors together."""
    return sum(spec.num_bytes for spec in bucket)


if TYPE_CHECKING:
    import torch


def checksums(state: "Mapping[str, torch.Tensor]", dtype: "torch.dtype") -> dict[str, str]:
    """Return the sha256 of each tensor's bytes in `dtype`, in row-major order."""
    import torch

    found = {}
    for name, tensor in state.items():
        values = tensor.detach().to("cpu", dtype).contiguous()
        content = values.flatten().view(torch.uint8).numpy().data
        found[name] = hashlib.sha256(content).hexdigest()
    return found


def refuse_difference(who: str, update: WeightUpdate, found: Mapping[str, str]) -> None:
    """Compare the checksums of `update` with those that an engine has `found` in its model.

    Args:
        who: name of the engine, for the message of the error.

    Raises:
        EngineError: names the first weight whose values are not those that the trainer published.
    """
    for name in sorted(update.checksums.keys() | found.keys()):
        published = update.checksums.get(name)
        held = found.get(name)
        if published != held:
            raise EngineError(
                f"{who}: {name} of version {update.version} is not what the trainer published: its sha256 is "
                f"{held}, and should be {published}"
            )
