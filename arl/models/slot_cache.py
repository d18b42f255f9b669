"""Cache the keys and values of every open request in slots, and compute generation's attention over them.

One forward pass decodes and prefills. Its tokens are a single row: first one new token of each of the n decoding
slots, then the sequences of m new slots as a prefix tree, in which what they share is computed once. Slots in use are
always 0 … n−1, so the cache is read as views.

    tokens   d d d d … d | P P P a b c …
             n decode      T prefill, whose keys and values go to slots n … n+m−1, to each along its path
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PretrainedConfig

from arl.models.packed import PackedContext
from arl.models.prefix_tree import PrefixTree


@dataclass(frozen=True)
class _Plan:
    """Hold what the current pass writes and sees. It is computed once and used by every layer."""

    decode: int  # n
    span: int  # slots' longest live length after this pass
    write: Tensor  # (n · H_kv,) int64, rows of the flattened cache that the new tokens go to
    bias: Tensor  # (n, 1, 1, span) float32, −inf beyond each slot's length
    prompts: PackedContext | None  # what the T prefilled tokens see
    paths: Tensor  # (m, W) int64, which of them each new slot holds; any beyond its length


class SlotCache:
    """Implement AttentionContext over `slots` requests. Memory grows by doubling the capacity of all slots together.

    Usage: `plan(...)`, one forward pass with `context=cache`, and `move(...)` when slots are freed. `clear()` frees all
    memory when no slot is in use.
    """

    def __init__(self, config: PretrainedConfig, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        config = config.get_text_config()
        heads = config.num_attention_heads
        self._kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
        self._head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self._num_layers: int = config.num_hidden_layers
        self._slots = slots
        self._dtype = dtype
        self._device = device
        self._limit: int = config.max_position_embeddings
        self.clear()
        self._heads = torch.arange(self._kv_heads, device=device)
        self._plan: _Plan  # of the current pass

    def _empty(self) -> Tensor:
        """Make (2, slots, H_kv, capacity, D): keys, then values. Zeros, since 0 × a NaN left in memory is NaN."""
        shape = (2, self._slots, self._kv_heads, self._capacity, self._head_dim)
        return torch.zeros(shape, dtype=self._dtype, device=self._device)

    def clear(self) -> None:
        """Free all memory."""
        self._capacity = 0  # the next pass allocates what it needs
        self._layers = [self._empty() for _ in range(self._num_layers)]

    @torch.inference_mode()
    def plan(self, lengths: Tensor, longest: int, prompts: PrefixTree | None) -> None:
        """Prepare the next pass.

        Args:
            lengths: (n,) int64, tokens already cached in slots 0 … n−1; each slot gets one more.
            longest: max(lengths) + 1, or 0. It is an argument because reading it from the device would wait for it.
            prompts: the sequences of the new slots n … n+m−1; None if there are none.
        """
        n = lengths.shape[0]
        context = None
        paths = torch.empty((0, 0), dtype=torch.int64, device=self._device)
        if prompts is not None:
            context = PackedContext(prompts.query_offsets, prompts.key_offsets, prompts.key_indices)
            paths = torch.from_numpy(prompts.paths).to(self._device, torch.int64)
        self._reserve(max(longest, paths.shape[1]))
        slots = torch.arange(n, device=self._device)
        slot_heads = slots[:, None] * self._kv_heads + self._heads
        write = slot_heads * self._capacity + lengths[:, None]  # the row behind the cached tokens
        is_seen = torch.arange(longest, device=self._device) <= lengths[:, None]
        bias = torch.zeros(is_seen.shape, device=self._device).masked_fill_(~is_seen, -torch.inf)
        self._plan = _Plan(
            decode=n,
            span=longest,
            write=write.flatten(),
            bias=bias[:, None, None],
            prompts=context,
            paths=paths,
        )

    def _reserve(self, length: int) -> None:
        """Grow the capacity of every slot to `length` tokens or more."""
        if length <= self._capacity:
            return
        old = self._capacity
        most = max(self._limit, length)
        while self._capacity < length:
            self._capacity = min(max(64, 2 * self._capacity), most)
        for i in range(self._num_layers):  # layer by layer, so that the peak is one layer above the result
            grown = self._empty()
            grown[:, :, :, :old] = self._layers[i]
            self._layers[i] = grown

    @torch.inference_mode()
    def move(self, source: Tensor, target: Tensor, longest: int) -> None:
        """Copy the first `longest` entries of slots `source` (k,) to slots `target` (k,)."""
        for layer in self._layers:
            layer[:, target, :, :longest] = layer[:, source, :, :longest]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attend: query (1, H, T, D), key and value (1, H_kv, T, D) ─► output (1, T, H, D)."""
        plan = self._plan
        n = plan.decode
        if plan.prompts is None:
            return self._decode(layer, query[0], key[0], value[0], scale)
        self._keep(layer, key[0, :, n:], value[0, :, n:])
        prefill = plan.prompts.attend(layer, query[:, :, n:], key[:, :, n:], value[:, :, n:], scale)
        if not n:
            return prefill
        decode = self._decode(layer, query[0, :, :n], key[0, :, :n], value[0, :, :n], scale)
        return torch.cat((decode, prefill), dim=1)

    def _decode(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attend with one token of each slot: query (H, n, D), key and value (H_kv, n, D) ─► (1, n, H, D)."""
        plan = self._plan
        n = plan.decode
        for cached, new in zip(self._layers[layer], (key, value), strict=True):
            new_rows = new.transpose(0, 1).flatten(0, 1)  # (n · H_kv, D)
            cached.view(-1, self._head_dim).index_copy_(0, plan.write, new_rows)
        # Views (n · H_kv, span, D): slots and heads are adjacent in memory.
        keys, values = self._layers[layer][:, :n, :, : plan.span].flatten(1, 2)
        # The H / H_kv query heads that share a key head are the rows of one small matrix product.
        scaled = query.transpose(0, 1) * scale
        queries = scaled.reshape(n * self._kv_heads, -1, self._head_dim)
        scores = torch.bmm(queries, keys.transpose(1, 2)).float()  # (n · H_kv, H / H_kv, span)
        scores.view(n, self._kv_heads, -1, plan.span).add_(plan.bias)
        weights = scores.softmax(-1).to(values.dtype)
        out = torch.bmm(weights, values)
        return out.view(1, n, -1, self._head_dim)

    def _keep(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Write the prefilled tokens' key and value, (H_kv, T, D), to the new slots."""
        plan = self._plan
        m, width = plan.paths.shape
        tokens = plan.paths.flatten()
        for cached, new in zip(self._layers[layer], (key, value), strict=True):
            rows = new.transpose(0, 1).index_select(0, tokens)  # (m · width, H_kv, D)
            slots = rows.view(m, width, self._kv_heads, self._head_dim)
            cached[plan.decode : plan.decode + m, :, :width].copy_(slots.transpose(1, 2))
