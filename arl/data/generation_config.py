"""Read which tokens end a response of a model: its tokenizer names one of them, and chat models often have several."""

import os
from pathlib import Path
from typing import Any

from arl.data.model_directory import read_description
from arl.errors import DataError

FILES = ("generation_config.json", "config.json")  # the first that a model has counts, as for transformers' generate


def end_token_ids(path: str | Path) -> tuple[int, ...]:
    """Return the ids in `eos_token_id` of generation_config.json, or of config.json where a model lacks the former.

    Args:
        path: directory of the model, or its Hugging Face name.

    Raises:
        DataError: the file is damaged, or the field is no id and no list of ids; it says the file.
    """
    for name in FILES:
        file = _find(path, name)
        if file is not None:
            return _ids(read_description(file), file)
    return ()


def _ids(content: dict[str, Any], file: Path) -> tuple[int, ...]:
    given = content.get("eos_token_id")
    if given is None:
        return ()
    ids = given if isinstance(given, list) else [given]
    for token in ids:
        if type(token) is not int or token < 0:
            raise DataError(f"{file}: eos_token_id {given!r} must be an id or a list of ids; correct it")
    return tuple(ids)


def _find(path: str | Path, name: str) -> Path | None:
    if os.path.isdir(path):
        file = Path(path) / name
        return file if os.path.exists(file) else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(hf_hub_download(str(path), name))
    except EntryNotFoundError:  # the model has none; without a network: the cached model has none
        return None
