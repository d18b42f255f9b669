"""Replace the attention of every Hugging Face model, in training and in generation.

Models are built with `attn_implementation=ATTENTION` and called with `context=…`. transformers passes that keyword on
to every layer, and the context decides what each token may see:

    arl.train    PackedContext   whole trajectories, packed without padding, a group's prompt stored once
    arl.engine   SlotCache       new tokens against the cache of each request's slot; prefill by a PackedContext
"""

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface

ATTENTION = "arl"


class AttentionContext(Protocol):
    """Compute the attention of every layer in one forward pass."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attend with the new tokens: query (B, H, L, D), key and value (B, H_kv, L, D) ─► output (B, L, H, D)."""


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    context: AttentionContext,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Call the context; transformers calls this function in every layer."""
    assert attention_mask is None, "a mask would silently override the context"
    assert dropout == 0.0, "attention dropout is not computed: call the model in evaluation mode"
    assert softcap is None, "refused when the model is loaded"
    assert sliding_window is None, "refused when the model is loaded"
    layer: int = module.layer_idx  # type: ignore[assignment]
    return context.attend(layer, query, key, value, scaling), None


# No mask function is registered under that name. So transformers makes no mask, and does not search the positions for
# packed sequences, which would wait for the GPU in every forward.
AttentionInterface.register(ATTENTION, attention)
