"""Read the JSON files that describe a model, and turn what libraries raise about a model's files into a DataError."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from arl.data.model_source import description_of
from arl.errors import DataError

AGAIN = "copy it again from where the model came from"
END_TOKENS = ("generation_config.json", "config.json")  # the first that a model has counts, as in transformers


@contextlib.contextmanager
def reading_model(path: str | Path, what: str) -> Iterator[None]:
    """Turn what libraries raise when the files of a model are missing or damaged into a DataError.

    Nothing else is called inside. tokenizers raises Exception itself, and transformers whatever its code runs into when
    a value has another type, so no narrower class would do.

    Args:
        what: is loaded.

    Raises:
        DataError: it cannot be loaded.
    """
    try:
        yield
    except (MemoryError, DataError):
        raise
    except Exception as error:
        why = str(error) if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {error}"
        raise DataError(f"model.path {path}: no {what} can be loaded from there ({why})") from error


def end_token_ids(path: str | Path) -> tuple[int, ...]:
    """Return the ids in `eos_token_id` of generation_config.json, or of config.json where a model lacks the former.

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
            raise DataError(f"{file}: is damaged ({error}); {AGAIN}") from error
        ids = given if isinstance(given, list) else [] if given is None else [given]
        if not all(type(token) is int and token >= 0 for token in ids):
            raise DataError(f"{file}: eos_token_id {given!r} must be an id or a list of ids; correct it")
        return tuple(ids)
    return ()
