"""One attention for every Hugging Face model, in training and in generation.

Models are built with `attn_implementation=ATTENTION` and called with `context=…`; transformers hands that
keyword through to every layer, and the context decides what each token may see:

    train/   PackedContext   whole trajectories, packed without padding, a group's prompt stored once
    engine/  SlotCache       new tokens against the cache of each request's slot; prefill by a PackedContext
"""

from typing import Any, Protocol

import torch
from transformers import AttentionInterface

ATTENTION = "arl"


class AttentionContext(Protocol):
    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """query (B, H, L, D), key and value (B, H_kv, L, D) of the new tokens ─► output (B, L, H, D)."""


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    context: AttentionContext,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in every layer."""
    assert attention_mask is None, "a mask would silently override the context"
    assert dropout == 0.0
    assert softcap is None, "refused when the model is loaded"
    assert sliding_window is None, "refused when the model is loaded"
    layer: int = module.layer_idx  # type: ignore[assignment]
    return context.attend(layer, query, key, value, scaling), None


# Without a mask function of that name transformers makes no mask, nor looks at the positions for sequences to mask,
# for which a GPU's answer would be waited for in every forward.
AttentionInterface.register(ATTENTION, attention)
