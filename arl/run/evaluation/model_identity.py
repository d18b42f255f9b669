"""Tell models apart by their place and by a hash of their files that costs seconds at most.

Weights up to `WHOLE` bytes are hashed whole. Of larger files the hash takes the size, the safetensors header, which
names every tensor with its type and shape, and `BLOCKS` blocks spread evenly over the rest: training changes nearly
every weight, so two checkpoints of one run differ in them.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from arl.errors import DataError

WHOLE = 256 * 1024**2  # bytes of weights
BLOCKS = 256  # of each larger file
BLOCK = 64 * 1024  # bytes
DESCRIPTIONS = ("config.json", "generation_config.json", "tokenizer*.json", "vocab.json", "merges.txt", "*.jinja")


class ModelIdentity(Struct, frozen=True, kw_only=True):
    """Say which model was evaluated."""

    name: str  # as it was given; of a link, where it leads
    path: str  # of its directory, with symbolic links resolved
    sha256: str  # of its weights, config and tokenizer
    hashed: str  # "all bytes", or "headers and samples of the weights"


def identify(name: str, directory: Path) -> ModelIdentity:
    """Identify the model in `directory`.

    Raises:
        DataError: it has no safetensors.
    """
    home = Path(os.path.realpath(directory))
    weights = _weights(home)
    if not weights:
        raise DataError(f"model {name}: {home} has no model*.safetensors{_checkpoints(home)}")
    return ModelIdentity(
        name=name,
        path=str(home),
        sha256=model_sha256(directory),
        hashed="all bytes" if _is_small(weights) else "headers and samples of the weights",
    )


def model_sha256(directory: Path) -> str:
    """Hash the weights, config and tokenizer in `directory`; of weights that are no safetensors nothing is hashed."""
    home = Path(os.path.realpath(directory))
    weights = _weights(home)
    is_whole = _is_small(weights)
    digest = hashlib.sha256()
    for file in [*_descriptions(home), *weights]:
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        for block in _blocks(file, is_whole or file not in weights):
            digest.update(block)
    return digest.hexdigest()


def follow_link(model: str) -> str:
    """Return the name of a model, or where a link such as checkpoints/best leads, because it leads elsewhere later."""
    path = Path(model)
    return os.path.realpath(path) if os.path.islink(path) else model


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


def _is_small(weights: Sequence[Path]) -> bool:
    """Return whether weights are hashed whole."""
    return sum(file.stat().st_size for file in weights) <= WHOLE


def _descriptions(home: Path) -> list[Path]:
    return sorted({file for pattern in DESCRIPTIONS for file in home.glob(pattern)})


def _blocks(file: Path, is_whole: bool) -> Iterator[bytes]:
    with file.open("rb") as content:
        if is_whole:
            while block := content.read(1024**2):
                yield block
            return
        size = file.stat().st_size
        header = int.from_bytes(content.read(8), "little")  # safetensors: its length stands before it
        yield content.read(min(header, size))
        for i in range(BLOCKS):
            content.seek(i * max(size - BLOCK, 0) // (BLOCKS - 1))
            yield content.read(BLOCK)


def _checkpoints(home: Path) -> str:
    """Name the newest checkpoint, if this is the directory of a run."""
    steps = [path for path in home.glob("checkpoints/step_*") if path.name.removeprefix("step_").isdecimal()]
    if not steps:
        return ""
    newest = max(steps, key=lambda path: int(path.name.removeprefix("step_")))
    return f"; it is a run, whose newest checkpoint is {newest}"
