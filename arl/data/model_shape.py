"""Read from a model's config the sizes that decide how many bytes its training and its generation take. Torch-free."""

from typing import Any

from msgspec import Struct

NORMED_HEADS = {"qwen3"}  # families that normalize each head's query and key
WIDE_NORMS = {"gemma"}  # families whose norms multiply by their weight in float32


class ModelShape(Struct, frozen=True):
    """Hold the sizes of a decoder of attention and a gated MLP, as all that arl trains are.

    >>> from transformers import Qwen2Config
    >>> shape = ModelShape.of(Qwen2Config(hidden_size=1536, num_attention_heads=12, num_key_value_heads=2))
    >>> shape.query_width, shape.key_width
    (1536, 256)
    """

    layers: int
    width: int  # of the residual stream
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab_size: int
    has_normed_heads: bool
    has_wide_norms: bool

    @classmethod
    def of(cls, config: Any) -> "ModelShape":
        """Read the sizes of a transformers config."""
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            mlp_width=config.intermediate_size,
            vocab_size=config.vocab_size,
            has_normed_heads=config.model_type in NORMED_HEADS,
            has_wide_norms=config.model_type in WIDE_NORMS,
        )

    @property
    def query_width(self) -> int:
        """Return the numbers of one token's queries, over all heads."""
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Return the numbers of one token's keys, over all heads; its values have as many."""
        return self.kv_heads * self.head_dim
