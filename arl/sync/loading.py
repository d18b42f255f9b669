"""Weights as an engine takes them: read or received whole, checked, and only then copied into the live model.

flat bucket ◄─► tensors by name ─► load_state, all or nothing ─► sha256 of what the model holds
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from arl.errors import EngineError
from arl.models.load import DTYPES
from arl.sync.buckets import TensorSpec


def read_weights(directory: str | Path) -> dict[str, Tensor]:
    """Raises EngineError: `directory`/model.safetensors cannot be read."""
    path = Path(directory) / "model.safetensors"
    try:
        state: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise EngineError(f"{path}: the weights cannot be read ({error})") from error
    return state


def load_state(model: PreTrainedModel, state: Mapping[str, Tensor], source: str) -> None:
    """Copy `state` into the model's parameters, casting to their dtype.

    Raises:
        EngineError: names or shapes differ from the model's; nothing has been changed then.
    """
    own = dict(model.named_parameters())  # a tied weight appears once, under the name it is saved by
    if missing := own.keys() - state.keys():
        raise EngineError(f"{source}: {min(missing)} is missing: these are not weights of this model")
    refuse_strangers(model, {name: tuple(tensor.shape) for name, tensor in state.items()}, source)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(state[name])


def refuse_strangers(model: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]], source: str) -> None:
    """Raises EngineError: the model has no such parameter, or one of another shape."""
    own = dict(model.named_parameters(remove_duplicate=False))
    for name, shape in sorted(shapes.items()):
        if name not in own:
            raise EngineError(f"{source}: {name} is no parameter of this model")
        if shape != own[name].shape:
            raise EngineError(f"{source}: {name} has shape {shape}, the model's is {tuple(own[name].shape)}")


def specs_of(state: Mapping[str, Tensor]) -> list[TensorSpec]:
    return [TensorSpec(name, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in state.items()]


def flatten(state: Mapping[str, Tensor], bucket: Sequence[TensorSpec], flat: Tensor) -> Tensor:
    """Copy the tensors of `bucket`, one after the other, into `flat`: (sum of num_bytes,) uint8."""
    for name, part in unflatten(flat, bucket).items():
        part.copy_(state[name])
    return flat


def unflatten(flat: Tensor, bucket: Sequence[TensorSpec]) -> dict[str, Tensor]:
    """Views of `flat`, each with the name, dtype and shape of its spec."""
    views, start = {}, 0
    for spec in bucket:
        end = start + spec.num_bytes
        views[spec.name] = flat[start:end].view(DTYPES[spec.dtype]).view(spec.shape)
        start = end
    return views


def checksums(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, str]:
    """sha256 of each tensor's bytes in `dtype`, row-major."""
    return {name: _sha256(tensor.detach().to("cpu", dtype)) for name, tensor in state.items()}


def _sha256(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().flatten().view(torch.uint8).numpy().data).hexdigest()
