"""What a model can be asked, and what that costs, by its config."""

from typing import Any, NamedTuple

from msgspec import Struct

from arl.errors import DataError


class Limits(NamedTuple):
    vocab_size: int  # ids run from 0 to vocab_size − 1
    context: int  # longest sequence, tokens


class Flops(Struct, frozen=True):
    """Of a forward; a training step takes about the same multiple of each."""

    token: float  # linear layers, per token
    key: float  # attention, per pair of a token and a key it sees
    score: float  # head, per scored position

    def of(self, tokens: int, keys: int, scores: int) -> float:
        return self.token * tokens + self.key * keys + self.score * scores


def model_limits(path: str) -> Limits:
    """Of a directory or Hugging Face name.

    Raises:
        DataError: no model there.
    """
    config = model_config(path)
    return Limits(int(config.vocab_size), int(config.max_position_embeddings))


def model_flops(path: str) -> Flops:
    """Of a directory or Hugging Face name, whose layers are attention and a gated MLP, as in all that arl trains.

    Raises:
        DataError: no model there.
    """
    c = model_config(path)
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    attention = 2 * c.hidden_size * head_dim * (c.num_attention_heads + c.num_key_value_heads)  # q and o, k and v
    mlp = 3 * c.hidden_size * c.intermediate_size
    return Flops(
        token=2.0 * c.num_hidden_layers * (attention + mlp),
        key=4.0 * c.num_hidden_layers * c.num_attention_heads * head_dim,
        score=2.0 * c.hidden_size * c.vocab_size,
    )


def model_config(path: str) -> Any:
    """Of a directory or Hugging Face name, as transformers reads it.

    Raises:
        DataError: no model there.
    """
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path).get_text_config()
    except (OSError, ValueError) as error:
        raise DataError(f"model.path {path}: no model can be loaded from there ({error})") from error
