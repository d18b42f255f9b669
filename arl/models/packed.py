"""Attention over a pack, in training and in prefill: a token sees its own ancestors, and nothing else.

A pack is a row of T tokens cut into S segments (arl.models.prefix_tree). The queries of segment s are its own tokens.
Its keys are a list: the pack indices of every ancestor of its last token, in order. Its q queries are the last q of its
k keys, so the causal mask is aligned to the bottom right. A plain sequence lists itself. The responses of one problem
list the prompt's tokens, which are stored once, then their own (cf. Prefix Grouper, arXiv 2506.05433).

    one segment                       the plain causal call
    supported by flash attention      one variable-length call over all segments
    otherwise                         segments of similar size are gathered into padded batches of plain matrix
                                      products; a large one is a fused attention call of its own
"""

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

FLASH_DTYPES = (torch.bfloat16, torch.float16)
FLASH_WIDTHS = range(8, 257, 8)  # of one head
LARGE = 256 * 256  # scores of one head above which a fused call beats a stored score matrix


@dataclass(frozen=True)
class _Bucket:
    """N segments padded to Q queries and K keys."""

    query_rows: Tensor  # (N, Q) int64 pack index of each query, T where padded
    key_rows: Tensor  # (N, K) int64 pack index of each key, 0 where padded
    hidden: Tensor  # (N, 1, Q, K) bool, True where a query may not look

    @property
    def shape(self) -> tuple[int, int, int]:
        """N, Q, K."""
        return len(self.query_rows), self.query_rows.shape[1], self.key_rows.shape[1]

    @property
    def scores(self) -> int:
        """Number of scores of one head of one segment."""
        return self.query_rows.shape[1] * self.key_rows.shape[1]


class PackedContext:
    """Computes the attention of one pack; implements AttentionContext.

    Args:
        query_offsets: (S+1,) int32, segment s owns the pack's tokens query_offsets[s]:query_offsets[s+1].
        key_offsets: (S+1,) int32 into key_indices.
        key_indices: (K,) int32 pack index of each key.
    """

    def __init__(self, query_offsets: np.ndarray, key_offsets: np.ndarray, key_indices: np.ndarray) -> None:
        assert query_offsets.shape == key_offsets.shape and key_indices.shape == (key_offsets[-1],)
        self.num_tokens = int(query_offsets[-1])
        self.calls = 0  # one for each layer; fewer if the model was not built on arl's attention
        self._layout = (query_offsets, key_offsets, key_indices)
        self._varlen: _Varlen | None = (
            None  # one of the two is made in the first layer, which has device, dtype and heads
        )
        self._gathered: _Gathered | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query (1, H, T, D), key and value (1, H_kv, T, D) ─► (1, T, H, D), in query's dtype."""
        self.calls += 1
        assert query.shape[0] == 1 and query.shape[2] == self.num_tokens, "the model must be called on the whole pack"
        assert key.shape[2] == self.num_tokens, "keys beyond the pack: call the model with use_cache=False"
        if len(self._layout[0]) == 2:  # one segment sees itself alone
            return _attention(query, key, value, scale, None).transpose(1, 2)
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, H, D), (T, H_kv, D)
        if q.is_cuda and q.dtype in FLASH_DTYPES and q.shape[2] in FLASH_WIDTHS:
            self._varlen = self._varlen or _Varlen(*self._layout, q.device)
            return self._varlen.attend(q, k, v, scale)[None]
        self._gathered = self._gathered or _Gathered(*self._layout, q, k)
        return self._gathered.attend(q, k, v, scale)[None]


class _Varlen:
    """Computes all segments in one flash attention."""

    def __init__(
        self, query_offsets: np.ndarray, key_offsets: np.ndarray, key_indices: np.ndarray, device: torch.device
    ) -> None:
        self._cu = [torch.from_numpy(o).to(device, non_blocking=True) for o in (query_offsets, key_offsets)]
        self._longest = [int(np.diff(o).max()) for o in (query_offsets, key_offsets)]
        self._keys = torch.from_numpy(key_indices).to(device, non_blocking=True)
        from torch.nn.attention import varlen  # importing it takes a second, so only this path does

        self._function: Any = varlen.varlen_attn
        self._wants_gqa_flag = "enable_gqa" in inspect.signature(self._function).parameters

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q (T, H, D), k and v (T, H_kv, D) ─► (T, H, D)."""
        # With fewer key heads than query heads, torch 2.11 needs no flag, and later versions do.
        grouped = {"enable_gqa": q.shape[1] != k.shape[1]} if self._wants_gqa_flag else {}
        out: Tensor = self._function(
            q.contiguous(),
            k.index_select(0, self._keys),
            v.index_select(0, self._keys),
            self._cu[0],
            self._cu[1],
            self._longest[0],
            self._longest[1],
            scale=scale,
            window_size=(-1, 0),
            **grouped,
        )
        return out


class _Gathered:
    """Computes segments of similar size in batched products, and each large one in a fused call."""

    def __init__(
        self, query_offsets: np.ndarray, key_offsets: np.ndarray, key_indices: np.ndarray, q: Tensor, k: Tensor
    ) -> None:
        buckets = _buckets(query_offsets, key_offsets, key_indices, q.device)
        self._gathers = [_gather(b, q.shape[1], k.shape[1], len(q)) for b in buckets if b.scores <= LARGE]
        self._large = [b for b in buckets if b.scores > LARGE]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q (T, H, D), k and v (T, H_kv, D) ─► (T, H, D)."""
        out: Tensor = _GatheredAttention.apply(q, k, v, scale, self._gathers)  # type: ignore[no-untyped-call]
        for bucket in self._large:
            out = out.index_copy(0, bucket.query_rows[0], _fused(q, k, v, scale, bucket))
        return out


def _buckets(
    query_offsets: np.ndarray, key_offsets: np.ndarray, key_indices: np.ndarray, device: torch.device
) -> list[_Bucket]:
    """Group segments whose sizes round up to the same powers of two. A large segment is alone and not padded."""
    queries = np.diff(query_offsets)
    keys = np.diff(key_offsets)
    assert (queries > 0).all() and (queries <= keys).all()
    groups: dict[tuple[int, int], list[int]] = {}
    for s, (q, k) in enumerate(zip(queries.tolist(), keys.tolist(), strict=True)):
        place = (s, 0) if q * k > LARGE else (_round_up(q, 16), _round_up(k, 64))
        groups.setdefault(place, []).append(s)
    members = [np.array(found) for found in groups.values()]
    return [_bucket(m, query_offsets, key_offsets, key_indices, device) for m in members]


def _round_up(size: int, least: int) -> int:
    return max(least, 1 << (size - 1).bit_length())


def _bucket(
    members: np.ndarray,
    query_offsets: np.ndarray,
    key_offsets: np.ndarray,
    key_indices: np.ndarray,
    device: torch.device,
) -> _Bucket:
    q = (query_offsets[members + 1] - query_offsets[members])[:, None]  # (N, 1)
    k = (key_offsets[members + 1] - key_offsets[members])[:, None]
    i, j = np.arange(q.max())[None], np.arange(k.max())[None]  # (1, Q), (1, K)
    real_query, real_key = i < q, j < k
    query_rows = np.where(real_query, query_offsets[members][:, None] + i, query_offsets[-1])
    key_rows = np.where(real_key, key_indices[np.where(real_key, key_offsets[members][:, None] + j, 0)], 0)
    last_seen = np.minimum(k - q + i, k - 1)  # (N, Q) a padded query sees the keys of its segment's last query
    hidden = j[:, None] > last_seen[:, :, None]  # (N, Q, K)
    return _Bucket(
        query_rows=torch.from_numpy(query_rows.astype(np.int64)).to(device),
        key_rows=torch.from_numpy(key_rows.astype(np.int64)).to(device),
        hidden=torch.from_numpy(hidden)[:, None].to(device),
    )


def _fused(q: Tensor, k: Tensor, v: Tensor, scale: float, bucket: _Bucket) -> Tensor:
    """Compute one large segment, (n, H, D), without storing its scores."""
    sq, sk, sv = (
        x.index_select(0, rows[0]).transpose(0, 1)[None]
        for x, rows in ((q, bucket.query_rows), (k, bucket.key_rows), (v, bucket.key_rows))
    )
    alone = bucket.shape[1] == bucket.shape[2]  # it sees only itself: the plain causal mask is faster
    return _attention(sq, sk, sv, scale, None if alone else ~bucket.hidden)[0].transpose(0, 1)


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """torch's fused attention, (1, H, Q, D), which stores no scores. Without a mask it is causal."""
    groups = q.shape[1] // k.shape[1]
    if q.is_cuda and groups > 1 and (q.dtype not in FLASH_DTYPES or mask is not None):
        # Only flash attention takes fewer key heads than query heads.
        k = k.repeat_interleave(groups, 1)
        v = v.repeat_interleave(groups, 1)
        groups = 1
    return scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=groups > 1
    )


@dataclass(frozen=True)
class _Gather:
    """A bucket as rows of (T·H, D) queries and (T·H_kv, D) keys, in the order of one batched product each."""

    queries: Tensor  # (N·H·Q,) int64, ≥ T·H where padded
    safe_queries: Tensor  # (N·H·Q,) the same, any row where padded
    keys: Tensor  # (N·H_kv·K,) int64
    hidden: Tensor  # (N, 1, Q, K) bool
    batch: int  # N·H_kv


def _gather(bucket: _Bucket, heads: int, kv_heads: int, num_tokens: int) -> _Gather:
    def rows(tokens: Tensor, per_token: int) -> Tensor:
        return (tokens[:, None, :] * per_token + torch.arange(per_token, device=tokens.device)[:, None]).flatten()

    queries = rows(bucket.query_rows, heads)
    return _Gather(
        queries=queries,
        safe_queries=queries.clamp(max=num_tokens * heads - 1),
        keys=rows(bucket.key_rows, kv_heads),
        hidden=bucket.hidden,
        batch=len(bucket.query_rows) * kv_heads,
    )


class _GatheredAttention(torch.autograd.Function):
    """Attention of every bucket as two batched products; the backward reuses the stored weights.

    Padded queries write to rows behind the last token, and read a gradient of zero there.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, gathers: list[_Gather]) -> Tensor:
        tokens, heads, dim = q.shape
        out = q.new_empty((tokens + 1) * heads, dim)
        saved = []
        for gather in gathers:
            bq = q.reshape(-1, dim).index_select(0, gather.safe_queries).view(gather.batch, -1, dim).mul_(scale)
            bk, bv = (x.reshape(-1, dim).index_select(0, gather.keys).view(gather.batch, -1, dim) for x in (k, v))
            weights = _weights(bq, bk, gather.hidden)
            out.index_copy_(0, gather.queries, (weights @ bv).view(-1, dim))
            saved += [bq, bk, bv, weights]
        ctx.save_for_backward(*saved)
        ctx.scale, ctx.gathers, ctx.shapes = scale, gathers, (q.shape, k.shape)
        return out[: tokens * heads].view(q.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (q_shape, k_shape), saved = ctx.shapes, ctx.saved_tensors
        heads, dim = q_shape[1:]
        padded = torch.cat([grad.reshape(-1, dim), grad.new_zeros(heads, dim)])
        dq = torch.zeros_like(padded)
        dk, dv = (grad.new_zeros(k_shape[0] * k_shape[1], dim) for _ in range(2))
        for b, gather in enumerate(ctx.gathers):
            bq, bk, bv, weights = saved[4 * b : 4 * b + 4]
            do = padded.index_select(0, gather.queries).view_as(bq)
            dv.index_add_(0, gather.keys, (weights.transpose(1, 2) @ do).view(-1, dim))
            ds = torch._softmax_backward_data(do @ bv.transpose(1, 2), weights, -1, weights.dtype)
            dk.index_add_(0, gather.keys, (ds.transpose(1, 2) @ bq).view(-1, dim))
            dq.index_copy_(0, gather.queries, (ds @ bk).mul_(ctx.scale).view(-1, dim))
        return dq[: grad.shape[0] * heads].view(q_shape), dk.view(k_shape), dv.view(k_shape), None, None


def _weights(q: Tensor, k: Tensor, hidden: Tensor) -> Tensor:
    """softmax over the visible keys: (N·H_kv, H/H_kv · Q, K) in q's dtype, computed in float32."""
    count, _, length, keys = hidden.shape
    scores = (q @ k.transpose(1, 2)).float()
    scores.view(count, -1, length, keys).masked_fill_(hidden, float("-inf"))
    return scores.softmax(-1).to(q.dtype)
