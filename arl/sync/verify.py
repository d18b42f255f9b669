"""Verify that engines hold what the trainer publishes.

    before the first group   refuse_other_tensors: names, shapes and dtypes, with the files that engines began with
    after each swap          checksums of what was published ─► refuse_difference with those of what the engine holds

Importing it does not import torch, because the controller's side does so.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arl.errors import EngineError, TrainerError
from arl.models.model_files import tensors_in
from arl.sync.buckets import TensorSpec
from arl.types import WeightUpdate

if TYPE_CHECKING:
    import torch

FLOATS = ("F64", "F32", "F16", "BF16")  # safetensors' names of the dtypes that a float may be cast from
NOT_PUBLISHED = "rotary_emb.inv_freq"  # a buffer in old files, which no model reads
REMEDY = "give model.path a checkpoint of an architecture that arl supports, as transformers writes it"

StoredTensors = dict[str, tuple[tuple[int, ...], str]]  # name -> shape, safetensors' name of the dtype


def refuse_other_tensors(tensors: Sequence[TensorSpec], directory: Path) -> None:
    """Compare what the trainer will publish with the safetensors headers in `directory`: names, shapes, dtypes.

    A tied weight appears once in `tensors` and may appear twice in the files. Without files nothing is compared.

    Raises:
        TrainerError: names the first tensor that only one side has, or that differs.
    """
    stored = _stored_tensors(directory)
    if not stored:
        return
    published = {spec.name: spec for spec in tensors}
    config = json.loads((directory / "config.json").read_text())
    is_tied = config.get("tie_word_embeddings", False)
    aliases = {"lm_head.weight"} if is_tied else set()
    rule = f"the trainer publishes other weights than the engines began with, which are in {directory}"
    for name in sorted(published.keys() | stored.keys()):
        if name not in published:
            if name not in aliases and not name.endswith(NOT_PUBLISHED):
                raise TrainerError(f"{rule}: {name} is in the files alone; {REMEDY}")
            continue
        if name not in stored:
            raise TrainerError(f"{rule}: {name} is the trainer's alone; {REMEDY}")
        spec = published[name]
        shape, dtype = stored[name]
        if shape != spec.shape or dtype not in FLOATS:
            difference = f"the trainer's is {spec.dtype} {spec.shape}, the files' is {dtype} {shape}"
            raise TrainerError(f"{rule}: {name}: {difference}; {REMEDY}")


def _stored_tensors(directory: Path) -> StoredTensors:
    """Read the headers of the model's safetensors files."""
    stored: StoredTensors = {}
    for file in directory.glob("model*.safetensors"):
        for name, tensor in tensors_in(file).items():
            stored[name] = (tensor.shape, tensor.dtype)
    return stored


def checksums(state: "Mapping[str, torch.Tensor]", dtype: "torch.dtype") -> dict[str, str]:
    """Return the sha256 of each tensor's bytes in `dtype`, in row-major order."""
    import torch

    found = {}
    for name, tensor in state.items():
        values = tensor.detach().to("cpu", dtype).contiguous()
        content = values.flatten().view(torch.uint8).numpy().data
        found[name] = hashlib.sha256(content).hexdigest()
    return found


def refuse_difference(who: str, update: WeightUpdate, found: Mapping[str, str]) -> None:
    """Compare the checksums of `update` with those that an engine has `found` in its model.

    Args:
        who: name of the engine, for the message of the error.

    Raises:
        EngineError: names the first weight whose values are not those that the trainer published.
    """
    for name in sorted(update.checksums.keys() | found.keys()):
        published = update.checksums.get(name)
        held = found.get(name)
        if published != held:
            raise EngineError(
                f"{who}: {name} of version {update.version} is not what the trainer published: its sha256 is "
                f"{held}, and should be {published}"
            )
