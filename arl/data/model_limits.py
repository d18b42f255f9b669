"""Read a model's limits and its floating-point operations from its config."""

from typing import Any, NamedTuple

from msgspec import Struct

from arl.data.model_directory import reading_model
from arl.data.model_source import description_of


class Limits(NamedTuple):
    """Hold the sizes that no request may exceed."""

    vocab_size: int  # ids run from 0 to vocab_size − 1
    context: int  # longest sequence, tokens


class Flops(Struct, frozen=True):
    """Hold the floating-point operations of a forward; a training step takes about the same multiple of each."""

    token: float  # linear layers, per token
    key: float  # attention, per pair of a token and a key it sees
    score: float  # head, per scored position

    def of(self, tokens: int, keys: int, scores: int) -> float:
        """Count the operations of `tokens` that see `keys` keys in all, with `scores` scored positions."""
        return self.token * tokens + self.key * keys + self.score * scores


def model_limits(path: str) -> Limits:
    """Return the limits of the model in a directory, or of a Hugging Face name.

    Raises:
        DataError: no model there.
    """
    config = model_config(path)
    with reading_model(path, "sizes of a model"):
        return Limits(int(config.vocab_size), int(config.max_position_embeddings))


def model_flops(path: str) -> Flops:
    """Return the operations of a model whose layers are attention and a gated MLP, as in all that arl trains.

    Raises:
        DataError: no model there.
    """
    config = model_config(path)
    width = config.hidden_size
    layers = config.num_hidden_layers
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or width // heads
    attention = 2 * width * head_dim * (heads + config.num_key_value_heads)  # q and o, k and v
    mlp = 3 * width * config.intermediate_size
    return Flops(
        token=2.0 * layers * (attention + mlp),
        key=4.0 * layers * heads * head_dim,
        score=2.0 * width * config.vocab_size,
    )


def model_config(path: str) -> Any:
    """Return the config of a directory or Hugging Face name, as transformers reads it.

    Raises:
        DataError: no model there.
    """
    from transformers import AutoConfig

    with reading_model(path, "model"):
        return AutoConfig.from_pretrained(description_of(path), trust_remote_code=False).get_text_config()
