"""Check the files of a model directory from elsewhere before libraries open them, and name the one that is damaged.

    directory ─► regular files only ─► config.json: sizes in range ─► reading_model: transformers ─► or DataError

transformers believes what it reads: it waits for a FIFO, builds as many layers as it is told to, and raises whatever
its code runs into. Weights are checked in arl.models.model_files.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from arl.data.source_files import file_mode
from arl.errors import DataError

OPENED = (".json", ".txt", ".jinja", ".model", ".safetensors")  # ends of the names that libraries may open
TEMPLATES = "additional_chat_templates"  # a folder of further templates
AGAIN = "copy it again from where the model came from"
PERMIT = "give this user the right to read the model, or copy it to another directory"

Count = Annotated[int, Meta(ge=1, le=1 << 24)]
Positive = Annotated[float, Meta(gt=0, le=1e30)]


class _Rope(Struct, kw_only=True):
    """Hold what positions are computed from."""

    rope_theta: Positive | None = None
    factor: Positive | None = None


class _Sizes(Struct, kw_only=True):
    """Hold the fields of config.json that decide how much is built and computed. Other families name others."""

    model_type: str | None = None
    architectures: list[str] | None = None
    vocab_size: Count | None = None
    hidden_size: Count | None = None
    intermediate_size: Any = None
    num_hidden_layers: Annotated[int, Meta(ge=1, le=2000)] | None = None
    num_attention_heads: Count | None = None
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    max_position_embeddings: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    tie_word_embeddings: bool | None = None
    num_labels: Annotated[int, Meta(ge=0, le=1 << 16)] | None = None  # transformers makes a name for each
    rms_norm_eps: Positive | None = None
    rope_theta: Positive | None = None
    rope_parameters: _Rope | None = None
    rope_scaling: _Rope | None = None


def check_model_directory(path: Path) -> None:
    """Refuse a directory whose files no library may open, or whose config.json is damaged.

    Raises:
        DataError: names the file, and says what is wrong with it.
    """
    for directory in (path, path / TEMPLATES):
        if stat.S_ISDIR(file_mode(directory, f"model.path {directory}")):
            _refuse_irregular(directory)
    if file_mode(path / "config.json", f"model.path {path}/config.json"):
        _check_config(path / "config.json")


def read_description(file: Path) -> dict[str, Any]:
    """Read one of the JSON files that describe a model.

    Raises:
        DataError: it is damaged.
    """
    try:
        content: Any = msgspec.json.decode(file.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: is damaged ({error}); {AGAIN}") from error
    if not isinstance(content, dict):
        raise DataError(f"{file}: is damaged, because it holds no JSON object; {AGAIN}")
    return content


@contextlib.contextmanager
def reading_model(path: str | Path, what: str) -> Iterator[None]:
    """Turn what libraries raise when the files of a model are damaged into a DataError.

    Nothing else is called inside. tokenizers raises Exception itself, or panics, and transformers whatever its code
    runs into when a value has another type, so no narrower class would do.

    Args:
        what: is loaded.

    Raises:
        DataError: it cannot be loaded.
    """
    try:
        yield
    except MemoryError:
        raise
    except DataError:
        raise
    except Exception as error:
        why = str(error) if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {error}"
        raise DataError(f"model.path {path}: no {what} can be loaded from there ({why})") from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of a library in Rust, which exports no name for it
            raise
        raise DataError(f"model.path {path}: no {what} can be loaded from there (its files are damaged)") from error


def _refuse_irregular(directory: Path) -> None:
    try:
        with os.scandir(directory) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError as error:
        raise DataError(f"model.path {directory}: cannot be listed ({error.strerror}); {PERMIT}") from error
    for entry in entries:
        if not entry.name.endswith(OPENED):
            continue
        try:
            is_regular = stat.S_ISREG(entry.stat().st_mode)
        except OSError as error:
            raise DataError(f"{entry.path}: cannot be read ({error.strerror}); {AGAIN}") from error
        if not is_regular:
            raise DataError(f"{entry.path}: is no regular file; {AGAIN}")


def _check_config(file: Path) -> None:
    content = read_description(file)
    try:
        sizes = msgspec.convert(content, _Sizes)
    except msgspec.ValidationError as error:
        raise DataError(f"{file}: is damaged ({error}); {AGAIN}") from error
    if "transformers_weights" in content:
        raise DataError(f"{file}: transformers_weights names a file of weights, which arl does not read; {AGAIN}")
    heads = sizes.num_attention_heads
    kv_heads = sizes.num_key_value_heads
    if heads and kv_heads and heads % kv_heads:
        raise DataError(
            f"{file}: num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}; {AGAIN}"
        )
