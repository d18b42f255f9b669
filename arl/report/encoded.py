"""Encode data as JSON, whatever is in it: numbers of NumPy, and paths that are not UTF-8."""

from typing import Any

import msgspec
import numpy as np


def encode(data: object) -> bytes:
    """Return data as JSON; NaN is null."""
    try:
        return msgspec.json.encode(data, enc_hook=_plain)
    except UnicodeEncodeError:  # half of a character, as paths hold that are no UTF-8
        return msgspec.json.encode(whole_characters(msgspec.to_builtins(data, enc_hook=_plain)))


def whole_characters(data: Any) -> Any:
    """Return data in which a `?` stands for each half of a character."""
    if isinstance(data, str):
        return data.encode("utf-8", "replace").decode("utf-8")
    if isinstance(data, list):
        return [whole_characters(item) for item in data]
    if isinstance(data, dict):
        return {whole_characters(name): whole_characters(item) for name, item in data.items()}
    return data


def _plain(value: object) -> object:
    """Turn numbers and arrays of NumPy into those of Python."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"JSON cannot hold a {type(value).__name__}; give numbers, texts, lists or mappings")
