"""Cut weights into buckets: the tensors that travel together, in one order on both sides. Torch-free."""

import math
from collections.abc import Sequence

from msgspec import Struct

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
