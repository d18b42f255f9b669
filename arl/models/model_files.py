"""Name the files of a model, and find them by its directory or its Hugging Face name. This imports no torch."""

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct
from safetensors import SafetensorError, safe_open
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from arl.config.train_section import Lora
from arl.data.hub import DESCRIPTION, SOURCE, snapshot_of
from arl.data.model_limits import reading_model
from arl.errors import DataError

# Weights as safetensors in Hugging Face's own layout, and the files of config and tokenizer. Nothing twice.
WANTED = [*DESCRIPTION, "model.safetensors", "model-*.safetensors", SAFE_WEIGHTS_INDEX_NAME]
DTYPE_NAMES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # by safetensors' names
_DTYPE = re.compile(rb'("(?:torch_)?dtype"\s*:\s*")[^"]*')


class StoredTensor(NamedTuple):
    """Describe one tensor of a safetensors file."""

    file: Path
    shape: tuple[int, ...]
    dtype: str  # safetensors' name of it


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


def read_description(path: str | Path) -> dict[str, bytes]:
    """Read config, tokenizer, generation config and chat templates: name of a file -> its content.

    SOURCE says of which dtype the weights were that arl began with. Its own directories hold them in float32.

    Raises:
        DataError: a file, or the header of the weights, cannot be read.
    """
    home = local_copy(path)
    files = {file for pattern in DESCRIPTION for file in home.glob(pattern) if file.is_file()}
    with reading_model(path, "description"):
        description = {file.relative_to(home).as_posix(): file.read_bytes() for file in sorted(files)}
    if SOURCE not in description:
        largest = max(stored_tensors(home).values(), key=lambda tensor: math.prod(tensor.shape))
        dtype = DTYPE_NAMES.get(largest.dtype, "float32")
        description[SOURCE] = json.dumps({"dtype": dtype}).encode()
    return description


def write_description(description: Mapping[str, bytes], directory: Path, dtype: str) -> None:
    """Write the files of a description beside weights of `dtype`, byte for byte but for the dtype in config.json.

    transformers would write them anew, in a form that its older versions misread: the rotary base becomes the default.
    """
    for name, content in description.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(with_dtype(content, dtype) if name == CONFIG_NAME else content)


def with_dtype(config: bytes, dtype: str) -> bytes:
    """Name another dtype of the weights in a config.json, in the spelling that it has; every other byte stays.

    >>> with_dtype(b'{"torch_dtype": "bfloat16", "rms_norm_eps": 1e-05}', "float32")
    b'{"torch_dtype": "float32", "rms_norm_eps": 1e-05}'
    """
    return _DTYPE.sub(rb"\g<1>" + dtype.encode(), config)


OPTIMIZER = "optimizer"  # stem of the names of a checkpoint's files that hold what only training needs


def with_base(source: bytes, base: str | Path, lora: Lora) -> bytes:
    """Add to the content of SOURCE on what model a checkpoint's adapters sit, and how: a run that resumes needs it."""
    found = json.loads(source) | {"base": str(local_copy(base).resolve()), "lora": lora.model_dump(mode="json")}
    return json.dumps(found).encode()


def base_of(checkpoint: str | Path) -> str:
    """Return the model on which the adapters of a checkpoint sit.

    Raises:
        DataError: it has none, because its run trained all weights.
    """
    base = json.loads(read_description(checkpoint)[SOURCE]).get("base")
    if base is None:
        raise DataError(f"{checkpoint}: its run trained all weights; leave out train.lora, or begin a new run from it")
    return str(base)


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


def stored_tensors(path: str | Path) -> dict[str, StoredTensor]:
    """Describe each tensor of a model, by name.

    Raises:
        DataError: the model is no directory with safetensors, or one of them cannot be read.
    """
    home = local_copy(path)
    name = SAFE_WEIGHTS_NAME
    try:
        names = {name}
        if not os.path.exists(home / name) and os.path.exists(home / SAFE_WEIGHTS_INDEX_NAME):  # as transformers does
            name = SAFE_WEIGHTS_INDEX_NAME
            names = set(msgspec.json.decode((home / name).read_bytes(), type=_Index).weight_map.values())
        found: dict[str, StoredTensor] = {}
        for name in sorted(names):
            found |= tensors_in(home / name)
    except FileNotFoundError as error:
        raise DataError(
            f"model.path {path}: has no {name}; copy it again, or load it with transformers and save_pretrained it once"
        ) from error
    except (OSError, msgspec.DecodeError, SafetensorError) as error:
        raise DataError(f"model.path {path}: {name} cannot be read ({error}); copy it again") from error
    return found


def tensors_in(file: Path) -> dict[str, StoredTensor]:
    """Describe the tensors of a safetensors file, from its header.

    Raises:
        OSError, SafetensorError: it cannot be read.
    """
    with safe_open(file, framework="numpy") as opened:
        slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
        return {name: StoredTensor(file, tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
