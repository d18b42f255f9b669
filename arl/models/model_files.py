"""Name the files of a model, and find them by its directory or its Hugging Face name. This imports no torch."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct
from safetensors import SafetensorError
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from arl.data.model_source import DESCRIPTION, snapshot_of
from arl.errors import DataError
from arl.models.tensor_file import StoredTensor, open_tensors

# Weights as safetensors in Hugging Face's own layout, and the files of config and tokenizer. Nothing twice.
WANTED = [*DESCRIPTION, "model.safetensors", "model-*.safetensors"]


class _Index(Struct):
    weight_map: dict[str, str]  # parameter name -> name of a file


def local_copy(path: str | Path) -> Path:
    """Return `path` if it is a directory; otherwise download the model of that Hugging Face name, maybe with @REVISION.

    Raises:
        DataError: it is neither a directory nor a model that can be downloaded.
    """
    if os.path.isdir(path):
        return Path(path)
    try:
        return Path(snapshot_of(str(path), WANTED))
    except (OSError, ValueError) as error:
        raise DataError(
            f"model.path {path}: neither a directory nor a model that can be downloaded ({error})"
        ) from error


def file_of_part(stem: str, part: int, parts: int) -> str:
    """Name the safetensors file of part number `part`, counted from 0, as transformers names those of large models.

    >>> file_of_part("model", 0, 1), file_of_part("model", 0, 2)
    ('model.safetensors', 'model-00001-of-00002.safetensors')
    """
    if parts == 1:
        return f"{stem}.safetensors"
    return f"{stem}-{part + 1:05d}-of-{parts:05d}.safetensors"


def write_index(directory: Path, file_names: Mapping[str, str], num_bytes: int) -> None:
    """Write the index of a model in several files.

    Args:
        file_names: parameter name -> name of the file that holds it.
        num_bytes: of all parameters.
    """
    index = {"metadata": {"total_size": num_bytes}, "weight_map": dict(sorted(file_names.items()))}
    (directory / SAFE_WEIGHTS_INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n")


def stored_files(path: str | Path) -> dict[str, Path]:
    """Map each parameter name to the file that holds it.

    Raises:
        DataError: see `stored_tensors`.
    """
    return {name: tensor.file for name, tensor in stored_tensors(path).items()}


def stored_tensors(path: str | Path) -> dict[str, StoredTensor]:
    """Map each parameter name to what the headers of the safetensors say.

    Raises:
        DataError: weights that are not safetensors, a file that cannot be read, or one that the index names wrongly.
    """
    home = local_copy(path)
    has_index = os.path.exists(home / SAFE_WEIGHTS_INDEX_NAME)
    if has_index and os.path.exists(home / SAFE_WEIGHTS_NAME):  # trainer and engine could load different ones
        raise DataError(f"model.path {path}: has {SAFE_WEIGHTS_NAME} and {SAFE_WEIGHTS_INDEX_NAME}; remove one of them")
    if has_index:
        return _indexed_tensors(path, home)
    if not os.path.exists(home / SAFE_WEIGHTS_NAME):
        raise DataError(
            f"model.path {path}: has no {SAFE_WEIGHTS_NAME}; load it with transformers and save_pretrained it once"
        )
    return _read_header(path, home / SAFE_WEIGHTS_NAME)


def _indexed_tensors(path: str | Path, home: Path) -> dict[str, StoredTensor]:
    """Read the headers of all files that an index names."""
    try:
        index: _Index = msgspec.json.decode((home / SAFE_WEIGHTS_INDEX_NAME).read_bytes(), type=_Index)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"model.path {path}: {SAFE_WEIGHTS_INDEX_NAME} cannot be read ({error})") from error
    names: dict[str, list[str]] = {}  # by file
    for name, file_name in index.weight_map.items():
        names.setdefault(file_name, []).append(name)
    found = {}
    for file_name in sorted(names):
        if "/" in file_name or not file_name.endswith(".safetensors"):
            raise DataError(f"model.path {path}: {SAFE_WEIGHTS_INDEX_NAME} names {file_name!r}, no file beside it")
        tensors = _read_header(path, home / file_name)
        for name in names[file_name]:
            if name not in tensors:
                raise DataError(
                    f"model.path {path}: {file_name} lacks {name}, which {SAFE_WEIGHTS_INDEX_NAME} puts there"
                )
            found[name] = tensors[name]
    return found


def _read_header(path: str | Path, file: Path) -> dict[str, StoredTensor]:
    """Read what a safetensors file says of its tensors."""
    try:
        with open_tensors(file) as opened:
            return opened.tensors
    except (OSError, SafetensorError) as error:
        raise DataError(f"model.path {path}: {file.name} cannot be read ({error}); copy it again") from error
