"""What travels together when weights are sent: tensors by name, in one order on both sides. Torch-free."""

import math
from collections.abc import Sequence

from msgspec import Struct

ITEM_BYTES = {"float32": 4, "bfloat16": 2}


class TensorSpec(Struct, frozen=True):
    """All there is to know of a weight but its values."""

    name: str
    dtype: str  # as torch calls it; one of ITEM_BYTES
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def make_buckets(specs: Sequence[TensorSpec], num_bytes: int) -> list[list[TensorSpec]]:
    """`specs` in their order, cut where a bucket would exceed `num_bytes`; a larger tensor is alone.

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
