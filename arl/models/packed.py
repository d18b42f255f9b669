"""Compute attention over a pack, in training and in prefill: a token sees its own ancestors, and nothing else.

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
from collections.abc import Sequence
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
class _Layout:
    """Say which tokens each of the S segments of a pack owns and sees."""

    query_offsets: np.ndarray  # (S+1,) int32, segment s owns the pack's tokens query_offsets[s]:query_offsets[s+1]
    key_offsets: np.ndarray  # (S+1,) int32 into key_indices
    key_indices: np.ndarray  # (K,) int32 pack index of each key
    on_device: Sequence[Tensor] = ()  # the three where the queries will be; empty: they are copied when needed

    @property
    def num_tokens(self) -> int:
        return int(self.query_offsets[-1])


class PackedContext:
    """Compute the attention of one pack; implements AttentionContext.

    Args:
        query_offsets: (S+1,) int32, segment s owns the pack's tokens query_offsets[s]:query_offsets[s+1].
        key_offsets: (S+1,) int32 into key_indices.
        key_indices: (K,) int32 pack index of each key.
        on_device: the three where the queries will be; empty: they are copied if flash attention asks for them.
    """

    def __init__(
        self,
        query_offsets: np.ndarray,
        key_offsets: np.ndarray,
        key_indices: np.ndarray,
        on_device: Sequence[Tensor] = (),
    ) -> None:
        assert query_offsets.shape == key_offsets.shape
        assert key_indices.shape == (key_offsets[-1],)
        self.calls = 0  # one for each layer; fewer if the model was not built on arl's attention
        self._layout = _Layout(query_offsets, key_offsets, key_indices, on_device)
        # The first layer makes one of the two, because it knows device, dtype and heads.
        self._varlen: _Varlen | None = None
        self._gathered: _Gathered | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attend: query (1, H, T, D), key and value (1, H_kv, T, D) ─► (1, T, H, D), in query's dtype."""
        self.calls += 1
        num_tokens = self._layout.num_tokens
        assert query.shape[0] == 1, "a pack is one row"
        assert query.shape[2] == num_tokens, "the model must be called on the whole pack"
        assert key.shape[2] == num_tokens, "keys beyond the pack: call the model with use_cache=False"
        if len(self._layout.query_offsets) == 2:  # it sees itself alone
            return _attention(query, key, value, scale, mask=None).transpose(1, 2)
        q = query[0].transpose(0, 1)  # (T, H, D)
        k = key[0].transpose(0, 1)  # (T, H_kv, D)
        v = value[0].transpose(0, 1)
        if _suits_flash(q):
            self._varlen = self._varlen or _Varlen(self._layout, q.device)
            return self._varlen.attend(q, k, v, scale)[None]
        self._gathered = self._gathered or _Gathered(self._layout, q, k)
        return self._gathered.attend(q, k, v, scale)[None]


def _suits_flash(q: Tensor) -> bool:
    """Return whether flash attention computes queries (T, H, D) of this device, type and width."""
    return q.is_cuda and q.dtype in FLASH_DTYPES and q.shape[2] in FLASH_WIDTHS


class _Varlen:
    """Compute all segments in one flash attention."""

    def __init__(self, layout: _Layout, device: torch.device) -> None:
        from torch.nn.attention import varlen  # importing it takes a second, so only this path does

        self._function: Any = varlen.varlen_attn
        self._wants_gqa_flag = "enable_gqa" in inspect.signature(self._function).parameters
        arrays = (layout.query_offsets, layout.key_offsets, layout.key_indices)
        copied = layout.on_device or [torch.from_numpy(array).to(device, non_blocking=True) for array in arrays]
        self._query_offsets, self._key_offsets, self._keys = copied
        self._most_queries = int(np.diff(layout.query_offsets).max())  # of a segment
        self._most_keys = int(np.diff(layout.key_offsets).max())

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attend: q (T, H, D), k and v (T, H_kv, D) ─► (T, H, D)."""
        options = {}
        if self._wants_gqa_flag:  # with fewer key heads than query heads, torch 2.11 needs no flag; later versions do
            options["enable_gqa"] = q.shape[1] != k.shape[1]
        out: Tensor = self._function(
            q.contiguous(),
            k.index_select(0, self._keys),
            v.index_select(0, self._keys),
            self._query_offsets,
            self._key_offsets,
            self._most_queries,
            self._most_keys,
            scale=scale,
            window_size=(-1, 0),
            **options,
        )
        return out


class _Gathered:
    """Compute segments of similar size in batched products, and each large one in a fused call."""

    def __init__(self, layout: _Layout, q: Tensor, k: Tensor) -> None:
        queries = np.diff(layout.query_offsets).astype(np.int64)  # whose product with keys passes 2**31
        keys = np.diff(layout.key_offsets).astype(np.int64)
        assert (queries > 0).all()
        assert (queries <= keys).all()
        self._large = [_large(int(i), layout, q.device) for i in np.flatnonzero(queries * keys > LARGE)]
        groups: dict[tuple[int, int], list[int]] = {}
        for segment in np.flatnonzero(queries * keys <= LARGE).tolist():
            size = (_round_up(int(queries[segment]), 16), _round_up(int(keys[segment]), 64))
            groups.setdefault(size, []).append(segment)
        heads = q.shape[1]
        kv_heads = k.shape[1]
        self._gathers = [_gather(members, layout, heads, kv_heads, q.device) for members in groups.values()]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attend: q (T, H, D), k and v (T, H_kv, D) ─► (T, H, D)."""
        out: Tensor = _GatheredAttention.apply(q, k, v, scale, self._gathers)  # type: ignore[no-untyped-call]
        for rows, key_rows, mask in self._large:
            queries = _heads_first(q, rows)
            attended = _attention(queries, _heads_first(k, key_rows), _heads_first(v, key_rows), scale, mask)
            out = out.index_copy(0, rows, attended[0].transpose(0, 1))
        return out


def _large(segment: int, layout: _Layout, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the pack indices of a segment's n queries and m keys, and what may be seen, (1, 1, n, m) bool.

    Without a mask it sees only itself, and the plain causal one is faster.
    """
    rows = torch.arange(*layout.query_offsets[segment : segment + 2].tolist(), device=device)
    first, end = layout.key_offsets[segment : segment + 2].tolist()
    key_rows = torch.from_numpy(layout.key_indices[first:end]).to(device)
    num_earlier = len(key_rows) - len(rows)
    if not num_earlier:
        return rows, key_rows, None
    return rows, key_rows, torch.ones(1, 1, len(rows), len(key_rows), dtype=torch.bool, device=device).tril(num_earlier)


def _round_up(size: int, least: int) -> int:
    return max(least, 1 << (size - 1).bit_length())


def _heads_first(x: Tensor, rows: Tensor) -> Tensor:
    """Select tokens: x (T, H, D), rows (n,) ─► (1, H, n, D)."""
    return x.index_select(0, rows).transpose(0, 1)[None]


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """Compute torch's fused attention, (1, H, Q, D), which stores no scores. Without a mask it is causal."""
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
    """Hold N segments, padded to Q queries and K keys, as rows of (T·H, D) queries and (T·H_kv, D) keys.

    The rows are in the order of one batched product each.
    """

    queries: Tensor  # (N·H·Q,) int64, ≥ T·H where padded
    safe_queries: Tensor  # (N·H·Q,) the same, any row where padded
    keys: Tensor  # (N·H_kv·K,) int64
    hidden: Tensor  # (N, 1, Q, K) bool, True where a query may not look
    batch: int  # N·H_kv


def _gather(segments: list[int], layout: _Layout, heads: int, kv_heads: int, device: torch.device) -> _Gather:
    """Pad N segments to the longest of them."""
    members = np.array(segments)
    first_query = layout.query_offsets[members][:, None]  # (N, 1)
    first_key = layout.key_offsets[members][:, None]
    num_queries = layout.query_offsets[members + 1][:, None] - first_query
    num_keys = layout.key_offsets[members + 1][:, None] - first_key
    i = np.arange(num_queries.max())[None]  # (1, Q)
    j = np.arange(num_keys.max())[None]  # (1, K)
    query_tokens = np.where(i < num_queries, first_query + i, layout.num_tokens)  # (N, Q)
    is_key = j < num_keys
    places = np.where(is_key, first_key + j, 0)
    key_tokens = np.where(is_key, layout.key_indices[places], 0)  # (N, K)
    # A padded query sees what its segment's last query sees.
    last_seen = np.minimum(num_keys - num_queries + i, num_keys - 1)  # (N, Q)
    hidden = j[:, None] > last_seen[:, :, None]  # (N, Q, K)
    queries = torch.from_numpy(_rows_of_heads(query_tokens, heads)).to(device)
    return _Gather(
        queries=queries,
        safe_queries=queries.clamp(max=layout.num_tokens * heads - 1),
        keys=torch.from_numpy(_rows_of_heads(key_tokens, kv_heads)).to(device),
        hidden=torch.from_numpy(hidden)[:, None].to(device),
        batch=len(members) * kv_heads,
    )


def _rows_of_heads(tokens: np.ndarray, heads: int) -> np.ndarray:
    """Return the row of each head of each token, (N·heads·n,), of tokens (N, n) in a pack whose heads are rows."""
    of_head = np.arange(heads, dtype=np.int64)[:, None]
    return (tokens[:, None, :] * heads + of_head).reshape(-1)


class _GatheredAttention(torch.autograd.Function):
    """Compute attention of segments of similar size as two batched products; the backward reuses the stored weights.

    Padded queries write to rows behind the last token, and read a gradient of zero there.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, gathers: list[_Gather]) -> Tensor:
        num_tokens, heads, dim = q.shape
        out = q.new_empty((num_tokens + 1) * heads, dim)
        saved = []
        for gather in gathers:
            bq = _batch(q, gather.safe_queries, gather.batch).mul_(scale)
            bk = _batch(k, gather.keys, gather.batch)
            bv = _batch(v, gather.keys, gather.batch)
            weights = _weights(bq, bk, gather.hidden)
            attended = weights @ bv
            out.index_copy_(0, gather.queries, attended.view(-1, dim))
            saved += [bq, bk, bv, weights]
        ctx.save_for_backward(*saved)
        ctx.scale = scale
        ctx.gathers = gathers
        ctx.q_shape = q.shape
        ctx.k_shape = k.shape
        return out[: num_tokens * heads].view(q.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        num_tokens, heads, dim = ctx.q_shape
        _, kv_heads, _ = ctx.k_shape
        saved = ctx.saved_tensors
        padding = grad.new_zeros(heads, dim)
        dout = torch.cat([grad.reshape(-1, dim), padding])
        dq = torch.zeros_like(dout)
        dk = grad.new_zeros(num_tokens * kv_heads, dim)
        dv = grad.new_zeros(num_tokens * kv_heads, dim)
        for b, gather in enumerate(ctx.gathers):
            bq, bk, bv, weights = saved[4 * b : 4 * b + 4]
            do = dout.index_select(0, gather.queries).view_as(bq)
            dbv = weights.transpose(1, 2) @ do
            dv.index_add_(0, gather.keys, dbv.view(-1, dim))
            dweights = do @ bv.transpose(1, 2)
            ds = torch._softmax_backward_data(dweights, weights, -1, weights.dtype)
            dbk = ds.transpose(1, 2) @ bq
            dk.index_add_(0, gather.keys, dbk.view(-1, dim))
            dbq = (ds @ bk).mul_(ctx.scale)
            dq.index_copy_(0, gather.queries, dbq.view(-1, dim))
        dq = dq[: num_tokens * heads]
        return dq.view(ctx.q_shape), dk.view(ctx.k_shape), dv.view(ctx.k_shape), None, None


def _batch(x: Tensor, rows: Tensor, size: int) -> Tensor:
    """Gather the rows of a batched product: x (T, H, D), rows (size·n,) ─► (size, n, D)."""
    dim = x.shape[2]
    return x.reshape(-1, dim).index_select(0, rows).view(size, -1, dim)


def _weights(q: Tensor, k: Tensor, hidden: Tensor) -> Tensor:
    """Compute softmax over the visible keys: (N·H_kv, H/H_kv · Q, K) in q's dtype, computed in float32."""
    count, _, length, keys = hidden.shape
    scores = (q @ k.transpose(1, 2)).float()
    scores.view(count, -1, length, keys).masked_fill_(hidden, float("-inf"))
    return scores.softmax(-1).to(q.dtype)
