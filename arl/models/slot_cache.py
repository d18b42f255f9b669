"""Generation's side of the one attention: the keys and values of every open request, in slots.

One forward pass serves both kinds of work. Its T tokens lie in a single row, (1, T): first one new token of
each of the n decoding slots, then U prompts right-padded to W tokens. Slots in use are always 0 … n−1, so the
cache is read as views; a prompt shared by G requests is computed once and copied to their G slots.

    tokens   d d d d … d | p p p p . | p p p . . | …
             n decode      U × W prefill, whose keys and values go to slots n … n+m−1
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import PretrainedConfig


@dataclass(frozen=True)
class _Plan:
    """What the pass under way writes and sees; computed once and used by every layer."""

    decode: int  # n
    span: int  # slots' longest live length after this pass
    write: torch.Tensor  # (n · H_kv,) int64, rows of the flattened cache that the new tokens go to
    bias: torch.Tensor  # (n, 1, 1, span) float32, −inf behind each slot's length
    width: int  # W, 0 without prompts
    source: torch.Tensor  # (m,) int64, which of the U prompts each new slot holds


class SlotCache:
    """An AttentionContext over `slots` requests; memory grows by doubling the capacity of all slots together.

    Usage: `plan(...)`, one forward pass with `context=cache`, and `move(...)` when slots are freed.
    """

    def __init__(self, config: PretrainedConfig, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        config = config.get_text_config()
        heads = config.num_attention_heads
        self._kv_heads: int = getattr(config, "num_key_value_heads", None) or heads
        self._head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // heads
        self._num_layers: int = config.num_hidden_layers
        self._slots, self._dtype, self._device = slots, dtype, device
        self._capacity = 64
        self._limit: int = config.max_position_embeddings
        self._layers = [self._empty() for _ in range(self._num_layers)]
        self._heads = torch.arange(self._kv_heads, device=device)
        self._planned: _Plan | None = None

    @property
    def _plan(self) -> _Plan:
        assert self._planned is not None, "plan() comes before the forward pass"
        return self._planned

    def _empty(self) -> torch.Tensor:
        """(2, slots, H_kv, capacity, D): keys, then values. Zeros, since 0 × a NaN left in memory is NaN."""
        shape = (2, self._slots, self._kv_heads, self._capacity, self._head_dim)
        return torch.zeros(shape, dtype=self._dtype, device=self._device)

    @torch.inference_mode()
    def plan(self, lengths: torch.Tensor, longest: int, width: int, source: torch.Tensor) -> None:
        """Announce the next pass.

        Args:
            lengths: (n,) int64, tokens already cached in slots 0 … n−1; each gets one more
            longest: max(lengths) + 1, or 0; given, since reading it from a device would wait for it
            width: W, to which the prompts of this pass are padded; 0 without prompts
            source: (m,) int64, the prompt that new slot n + i holds
        """
        self._reserve(max(longest, width))
        n = lengths.shape[0]
        slots = torch.arange(n, device=self._device)
        write = (slots[:, None] * self._kv_heads + self._heads) * self._capacity + lengths[:, None]
        seen = torch.arange(longest, device=self._device) <= lengths[:, None]
        bias = torch.zeros(seen.shape, device=self._device).masked_fill_(~seen, -torch.inf)
        self._planned = _Plan(n, longest, write.flatten(), bias[:, None, None], width, source)

    def _reserve(self, length: int) -> None:
        if length <= self._capacity:
            return
        old = self._capacity
        while self._capacity < length:
            self._capacity = min(2 * self._capacity, max(self._limit, length))
        for i in range(self._num_layers):  # layer by layer, so that the peak is one layer above the result
            grown = self._empty()
            grown[:, :, :, :old] = self._layers[i]
            self._layers[i] = grown

    @torch.inference_mode()
    def move(self, source: torch.Tensor, target: torch.Tensor, longest: int) -> None:
        """Copy the first `longest` entries of slots `source` (k,) to slots `target` (k,)."""
        for layer in self._layers:
            layer[:, target, :, :longest] = layer[:, source, :, :longest]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """query (1, H, T, D), key and value (1, H_kv, T, D) ─► output (1, T, H, D)."""
        plan = self._plan
        n = plan.decode
        if not plan.width:
            return self._decode(layer, query[0], key[0], value[0], scale)
        prefill = self._prefill(layer, query[0, :, n:], key[0, :, n:], value[0, :, n:], scale)
        if not n:
            return prefill
        decode = self._decode(layer, query[0, :, :n], key[0, :, :n], value[0, :, :n], scale)
        return torch.cat((decode, prefill), dim=1)

    def _decode(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """query (H, n, D), key and value (H_kv, n, D) ─► (1, n, H, D): each token against its own slot."""
        plan = self._plan
        n, keys, values = plan.decode, self._layers[layer][0], self._layers[layer][1]
        keys.view(-1, self._head_dim).index_copy_(0, plan.write, key.transpose(0, 1).flatten(0, 1))
        values.view(-1, self._head_dim).index_copy_(0, plan.write, value.transpose(0, 1).flatten(0, 1))
        keys = keys[:n, :, : plan.span].flatten(0, 1)  # a view: slots and heads are adjacent in memory
        values = values[:n, :, : plan.span].flatten(0, 1)  # (n · H_kv, span, D)
        # The H / H_kv query heads that share a key head are the rows of one small matrix product.
        queries = (query.transpose(0, 1) * scale).reshape(n * self._kv_heads, -1, self._head_dim)
        scores = torch.bmm(queries, keys.transpose(1, 2)).float()  # (n · H_kv, H / H_kv, span)
        scores.view(n, self._kv_heads, -1, plan.span).add_(plan.bias)
        out = torch.bmm(scores.softmax(-1).to(values.dtype), values)
        return out.view(1, n, -1, self._head_dim)

    def _prefill(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """query (H, U·W, D), key and value (H_kv, U·W, D) ─► (1, U·W, H, D): causal inside each prompt."""
        plan = self._plan
        n, m = plan.decode, plan.source.shape[0]
        query, key, value = (_by_prompt(x, plan.width) for x in (query, key, value))
        kept = self._layers[layer][:, n : n + m, :, : plan.width]
        kept[0] = key.index_select(0, plan.source)
        kept[1] = value.index_select(0, plan.source)
        grouped = query.shape[1] != key.shape[1]
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=grouped)
        return out.transpose(1, 2).flatten(0, 1)[None]


def _by_prompt(x: torch.Tensor, width: int) -> torch.Tensor:
    """(H, U·W, D) ─► (U, H, W, D)."""
    heads, tokens, dim = x.shape
    return x.reshape(heads, tokens // width, width, dim).transpose(0, 1)
