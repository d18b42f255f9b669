"""Tell models apart by their place and by a hash of their files that costs seconds at most.

Weights up to `WHOLE` bytes are hashed whole. Of larger files the hash takes the size and `BLOCKS` blocks spread evenly:
training changes nearly every weight, so two checkpoints of one run differ in them.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

from arl.errors import DataError, InputError

WHOLE = 256 * 1024**2  # bytes of weights
BLOCKS = 256  # of each larger file
BLOCK = 64 * 1024  # bytes
DESCRIPTIONS = ("config.json", "generation_config.json", "tokenizer*.json", "vocab.json", "merges.txt", "*.jinja")


def identify(name: str, directory: Path) -> dict[str, Any]:
    """Identify the model in `directory`: its name, its real path, and a hash of weights, config and tokenizer.

    Raises:
        DataError: it has no safetensors.
    """
    home = directory.resolve()
    weights = _weights(home)
    if not weights:
        raise DataError(f"model {name}: {home} has no model*.safetensors")
    return {
        "name": name,
        "path": str(home),
        "sha256": model_sha256(directory),
        "hashed": "all bytes" if _is_small(weights) else "samples of the weights",
    }


def model_sha256(directory: Path) -> str:
    """Hash the weights, config and tokenizer in `directory`; of weights that are no safetensors nothing is hashed."""
    home = directory.resolve()
    weights = _weights(home)
    descriptions = sorted({file for pattern in DESCRIPTIONS for file in home.glob(pattern)})
    is_whole = _is_small(weights)
    digest = hashlib.sha256()
    for file in [*descriptions, *weights]:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as content:
            if is_whole or file not in weights:
                digest.update(hashlib.file_digest(content, "sha256").digest())
                continue
            for i in range(BLOCKS):
                content.seek(i * max(size - BLOCK, 0) // (BLOCKS - 1))
                digest.update(content.read(BLOCK))
    return digest.hexdigest()


def refuse_run(model: str) -> None:
    """Refuse the directory of a run, whose checkpoints are models.

    Raises:
        InputError: it is one; names its newest checkpoint.
    """
    found = [path for path in Path(model).glob("checkpoints/step_*") if path.name.removeprefix("step_").isdecimal()]
    if found:
        newest = max(found, key=lambda path: int(path.name.removeprefix("step_")))
        raise InputError(f"MODEL {model}: is a run, whose newest checkpoint is {newest}; give that")


def follow_link(model: str) -> str:
    """Return the name of a model, or where a link such as checkpoints/best leads, because it leads elsewhere later."""
    return os.path.realpath(model) if os.path.islink(model) else model


def short_name(model: str) -> str:
    """Return a name for directories and tables: of a checkpoint with its run, of a Hugging Face name with its owner.

    >>> short_name("runs/mine/checkpoints/step_20")
    'mine-step_20'
    >>> short_name("Qwen/Qwen2.5-0.5B")
    'Qwen--Qwen2.5-0.5B'
    """
    path = Path(model)
    if path.parent.name == "checkpoints":
        return f"{path.absolute().parent.parent.name}-{path.name}"
    if os.path.isdir(path) or path.is_absolute():
        return path.absolute().name
    return model.replace("/", "--")


def _weights(home: Path) -> list[Path]:
    return sorted(home.glob("model*.safetensors"))


def _is_small(weights: list[Path]) -> bool:
    """Return whether weights are hashed whole."""
    return sum(file.stat().st_size for file in weights) <= WHOLE
