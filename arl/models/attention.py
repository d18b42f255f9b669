"""One attention for every Hugging Face model, in training and in generation.

Models are built with `attn_implementation=ATTENTION` and called with `context=…`; transformers hands that
keyword through to every layer, and the context decides what each token may see:

    train/   PackedContext   whole trajectories, packed without padding, a group's prompt stored once
    engine/  SlotCache       new tokens against the cache of each request's slot; prefill by a PackedContext
"""

from typing import Any, Protocol

import torch
from transformers import AttentionInterface, AttentionMaskInterface

ATTENTION = "arl"


class AttentionContext(Protocol):
    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """query (B, H, L, D), key and value (B, H_kv, L, D) of the new tokens ─► output (B, L, H, D)."""


def _attention(
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
    assert attention_mask is None, "a mask would silently override the context"
    assert dropout == 0.0
    assert softcap is None, "refused when the model is loaded"
    assert sliding_window is None, "refused when the model is loaded"
    layer: int = module.layer_idx  # type: ignore[assignment]
    return context.attend(layer, query, key, value, scaling), None


def _no_mask(*_: Any, **__: Any) -> None:
    """The context masks; transformers must not build a (L, L) mask of its own."""


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, _no_mask)
