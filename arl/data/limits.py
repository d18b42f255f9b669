"""What a model can be asked, by its config."""

from typing import NamedTuple

from arl.errors import DataError


class Limits(NamedTuple):
    vocab_size: int  # ids run from 0 to vocab_size − 1
    context: int  # longest sequence, tokens


def model_limits(path: str) -> Limits:
    """Of a directory or Hugging Face name.

    Raises:
        DataError: no model there.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path).get_text_config()
    except (OSError, ValueError) as error:
        raise DataError(f"model.path {path}: no model can be loaded from there ({error})") from error
    return Limits(int(config.vocab_size), int(config.max_position_embeddings))
