"""What is published is bit-equal to the whole float32 weights, cast, however they are sharded."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from arl.models.load import DTYPES
from arl.models.weights import rows_of_part
from arl.sync.buckets import ITEM_BYTES, TensorSpec, bucket_bytes_of
from arl.sync.loading import unflatten
from arl.train.gathering import fill_pack, pack_bytes, unpack

SHAPES = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=8)


@given(SHAPES, st.integers(1, 9), st.sampled_from(sorted(ITEM_BYTES)), st.integers(0, 99))
def test_packs_of_any_number_of_ranks_put_the_bucket_together_again(
    shapes: list[list[int]], parts: int, dtype: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    bucket = [TensorSpec(str(number), dtype, tuple(shape)) for number, shape in enumerate(shapes)]
    whole = {spec.name: torch.randn(spec.shape, generator=generator) for spec in bucket}
    packs = torch.full((parts, pack_bytes(bucket, parts)), 255, dtype=torch.uint8)
    for part in range(parts):
        shards = {}
        for spec in bucket:
            first, end = rows_of_part(spec.shape[0], parts, part)
            shards[spec.name] = whole[spec.name][first:end]
        fill_pack(shards, bucket, parts, part, packs[part])
    flat = torch.empty(bucket_bytes_of(bucket), dtype=torch.uint8)
    unpack(packs, bucket, flat)
    for name, view in unflatten(flat, bucket).items():
        assert torch.equal(view, whole[name].to(DTYPES[dtype]))
