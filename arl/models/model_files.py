"""The files of a model, by its directory or its Hugging Face name. Torch-free."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from arl.errors import DataError

# Weights as safetensors in Hugging Face's own layout, once, and what config and tokenizer are made of.
WANTED = ["*.json", "*.txt", "*.jinja", "tokenizer.model", "model.safetensors", "model-*.safetensors"]


def local_copy(path: str | Path) -> Path:
    """A directory as it is; a Hugging Face name as the directory it is downloaded to.

    Raises:
        DataError: neither.
    """
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(path), allow_patterns=WANTED))
    except (OSError, ValueError) as error:
        raise DataError(
            f"model.path {path}: neither a directory nor a model that can be downloaded ({error})"
        ) from error


def stored_files(path: str | Path) -> dict[str, Path]:
    """Parameter name -> the file that holds it.

    Raises:
        DataError: weights that are not safetensors, or damaged.
    """
    home = local_copy(path)
    index, whole = home / SAFE_WEIGHTS_INDEX_NAME, home / SAFE_WEIGHTS_NAME
    if index.exists():
        return {name: home / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    if not whole.exists():
        raise DataError(
            f"model.path {path}: has no {SAFE_WEIGHTS_NAME}; load it with transformers and save_pretrained it once"
        )
    try:
        with safe_open(whole, "np") as tensors:
            return dict.fromkeys(tensors.keys(), whole)
    except (OSError, SafetensorError) as error:
        raise DataError(f"model.path {path}: {whole.name} cannot be read ({error})") from error
