"""Name the files of a model, and find them by its directory or its Hugging Face name. This imports no torch."""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from arl.data.model_source import DESCRIPTION, split_revision
from arl.errors import DataError

# Weights as safetensors in Hugging Face's own layout, and the files of config and tokenizer. Nothing twice.
WANTED = [*DESCRIPTION, "model.safetensors", "model-*.safetensors"]


def local_copy(path: str | Path) -> Path:
    """Return `path` if it is a directory; otherwise download the model of that Hugging Face name, maybe with @REVISION.

    Raises:
        DataError: it is neither a directory nor a model that can be downloaded.
    """
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    name, revision = split_revision(str(path))
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=WANTED))
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
        DataError: weights that are not safetensors, or a file that cannot be read.
    """
    home = local_copy(path)
    index = home / SAFE_WEIGHTS_INDEX_NAME
    whole = home / SAFE_WEIGHTS_NAME
    if index.exists():
        try:
            file_names = json.loads(index.read_text())["weight_map"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"model.path {path}: {index.name} cannot be read ({error!r})") from error
        return {name: home / file for name, file in file_names.items()}
    if not whole.exists():
        raise DataError(
            f"model.path {path}: has no {SAFE_WEIGHTS_NAME}; load it with transformers and save_pretrained it once"
        )
    try:
        with safe_open(whole, "np") as tensors:
            return dict.fromkeys(tensors.keys(), whole)
    except (OSError, SafetensorError) as error:
        raise DataError(f"model.path {path}: {whole.name} cannot be read ({error})") from error
