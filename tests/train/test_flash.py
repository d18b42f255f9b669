"""What the pack asks of torch's variable-length flash attention: all that can be told of it without a GPU."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention

from arl.models.packed import _Gathered, _Layout, _Varlen
from arl.models.prefix_tree import prefix_tree

HEADS, DIM = 4, 8
SEQUENCES = [np.array(tokens, np.int32) for tokens in ([1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2], [7, 8, 9], [1, 2, 3, 5])]
TREE = prefix_tree(SEQUENCES)
LAYOUT = _Layout(TREE.query_offsets, TREE.key_offsets, TREE.key_indices)


def heads(kv_heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(len(TREE.token_ids), n, DIM, dtype=dtype, requires_grad=True) for n in (HEADS, kv_heads, kv_heads)
    )
    return q, k, v


@functools.wraps(varlen.varlen_attn)
def plain(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, *_: Any, scale: float, **told: Any) -> Tensor:
    """Flash attention's definition, a segment at a time: the last query sees the last key."""
    assert cu_q.dtype == cu_k.dtype == torch.int32
    assert told["window_size"] == (-1, 0)
    parts = []
    for q0, q1, k0, k1 in zip(cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:], strict=True):
        seen = torch.ones(int(q1 - q0), int(k1 - k0), dtype=torch.bool).tril(int((k1 - k0) - (q1 - q0)))
        sq, sk, sv = (x.transpose(0, 1)[None] for x in (q[q0:q1], k[k0:k1], v[k0:k1]))
        out = scaled_dot_product_attention(sq, sk, sv, attn_mask=seen, scale=scale, enable_gqa=True)
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_one_call_over_all_segments_computes_what_gathered_ones_do(
    kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", plain)
    q, k, v = heads(kv_heads, torch.float64)
    ours = _Varlen(LAYOUT, q.device).attend(q, k, v, 0.3)
    theirs = _Gathered(LAYOUT, q, k).attend(q, k, v, 0.3)
    weights = torch.randn_like(ours)
    gradients = [torch.autograd.grad((x * weights).sum(), (q, k, v)) for x in (ours, theirs)]
    for one, other in zip((ours, *gradients[0]), (theirs, *gradients[1]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)  # gathered scores are float32
