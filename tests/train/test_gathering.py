"""What is published is bit-equal to the whole float32 weights, cast, however they are sharded."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arl.models.load import DTYPES
from arl.models.weights import rows_of_part
from arl.sync.buckets import ITEM_BYTES, TensorSpec, bucket_bytes_of
from arl.sync.loading import unflatten
from arl.train.gathering import fill_pack, pack_bytes, unpack
from tests.train import workers
from tests.train.families import make_family

SECONDS = 600
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


@pytest.mark.parametrize(
    ("ranks", "shard_ranks"), [(1, 1), (2, 2), (4, 4), pytest.param(4, 2, marks=pytest.mark.slow), (2, 1)]
)
def test_ranks_gather_into_flat_buckets_what_they_would_gather_tensor_by_tensor(
    tmp_path: Path, ranks: int, shard_ranks: int
) -> None:
    """Drawn shapes, some with fewer rows than ranks, and a model with a tied head; on rank 0 and everywhere."""
    model = make_family("qwen2-tied", tmp_path)
    arguments = [str(model), str(shard_ranks)]
    with workers.world("tests.train.gather_world", arguments, ranks, {"OMP_NUM_THREADS": "1"}) as processes:
        assert [process.wait(SECONDS) for process in processes] == [0] * ranks
