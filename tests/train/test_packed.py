"""The pack computes exactly what each trajectory would compute alone."""

import random
from unittest import mock

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from arl.models import packed
from arl.models.packed import PackedContext


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), min_size=2, max_size=6), st.randoms())
def test_segments_of_any_sizes_around_the_fused_path_attend_as_each_does_alone(
    sizes: list[tuple[int, int]], rng: random.Random
) -> None:
    with mock.patch.object(packed, "LARGE", 64):
        query_offsets = np.cumsum([0, *(own for own, _ in sizes)]).astype(np.int32)
        keys = []
        for i, (own, earlier) in enumerate(sizes):
            first = int(query_offsets[i])
            ancestors = sorted(rng.sample(range(first), min(earlier, first)))
            keys.append([*ancestors, *range(first, first + own)])
        key_offsets = np.cumsum([0, *map(len, keys)]).astype(np.int32)
        torch.manual_seed(rng.randrange(2**31))
        q, k, v = torch.randn(3, 1, 2, int(query_offsets[-1]), 4, dtype=torch.float64)
        together = PackedContext(query_offsets, key_offsets, np.concatenate(keys).astype(np.int32))
        out = together.attend(0, q, k, v, 0.5)[0]
    for i, seen in enumerate(keys):
        queries = slice(int(query_offsets[i]), int(query_offsets[i + 1]))
        scores = 0.5 * q[0, :, queries] @ k[0, :, seen].transpose(1, 2)
        hidden = torch.ones(scores.shape[1:]).triu(len(seen) - scores.shape[1] + 1).bool()
        alone = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v[0, :, seen]
        torch.testing.assert_close(out[queries], alone.transpose(0, 1), rtol=1e-5, atol=1e-5)  # parts add in float32
