"""Read what a model's directory says: its limits, its operations, its sizes, and the tokens that end a response."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from arl.data.hub import description_of
from arl.errors import DataError

SIZES = {
    "model_type",
    "vocab_size",
    "max_position_embeddings",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
}


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
    config = _sizes(path)
    with reading_model(path, "sizes of a model"):
        return Limits(int(config.vocab_size), int(config.max_position_embeddings))


def model_flops(path: str) -> Flops:
    """Return the operations of a model whose layers are attention and a gated MLP, as in all that arl trains.

    Raises:
        DataError: no model there.
    """
    shape = ModelShape.of(_sizes(path))
    attention = 2 * shape.width * (shape.query_width + shape.key_width)  # q and o, k and v
    mlp = 3 * shape.width * shape.mlp_width
    return Flops(
        token=2.0 * shape.layers * (attention + mlp),
        key=4.0 * shape.layers * shape.query_width,
        score=2.0 * shape.width * shape.vocab_size,
    )


def _sizes(path: str) -> Any:
    """Return the sizes in a model's config.json.

    Importing transformers' own reader, and with it torch, takes seconds, in which a controller would stand still. So it
    is asked only where the file leaves a size to its defaults.
    """
    with reading_model(path, "model"):
        config = json.loads((Path(description_of(path)) / "config.json").read_text())
        return SimpleNamespace(**config) if config.keys() >= SIZES else model_config(path)


def model_config(path: str) -> Any:
    """Return the config of a directory or Hugging Face name, as transformers reads it.

    Raises:
        DataError: no model there.
    """
    from transformers import AutoConfig

    with reading_model(path, "model"):
        return AutoConfig.from_pretrained(description_of(path), trust_remote_code=False).get_text_config()


END_TOKENS = ("generation_config.json", "config.json")  # the first that a model has counts, as in transformers


@contextlib.contextmanager
def reading_model(path: str | Path, what: str, field: str = "model.path") -> Iterator[None]:
    """Turn what libraries raise when the files of a model are missing or damaged into a DataError.

    Nothing else is called inside. tokenizers raises Exception itself, and transformers whatever its code runs into when
    a value has another type, so no narrower class would do.

    Args:
        what: is loaded.
        field: that names the model.

    Raises:
        DataError: it cannot be loaded.
    """
    try:
        yield
    except (MemoryError, DataError):
        raise
    except Exception as error:
        why = str(error) if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {error}"
        raise DataError(f"{field} {path}: no {what} can be loaded from there ({why})") from error


def end_token_ids(path: str | Path) -> dict[int, str]:
    """Return the ids in `eos_token_id` of generation_config.json, or of config.json where a model lacks the former.

    Each has the name of the file.

    Chat models often end a response with several tokens, and their tokenizer names only one of them.

    Args:
        path: directory of the model, or its Hugging Face name.

    Raises:
        DataError: the file is damaged, or the field is no id and no list of ids; it says the file.
    """
    directory = Path(description_of(str(path)))
    for name in END_TOKENS:
        file = directory / name
        if not os.path.exists(file):
            continue
        try:
            given: Any = msgspec.json.decode(file.read_bytes(), type=dict[str, Any]).get("eos_token_id")
        except (OSError, msgspec.DecodeError) as error:
            raise DataError(f"{file}: is damaged ({error}); copy it again from where the model came from") from error
        ids = given if isinstance(given, list) else [] if given is None else [given]
        if not all(type(token) is int and token >= 0 for token in ids):
            raise DataError(f"{file}: eos_token_id {given!r} must be an id or a list of ids; correct it")
        return dict.fromkeys(ids, name)
    return {}


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
