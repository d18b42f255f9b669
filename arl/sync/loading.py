"""Load published weights into an engine's model, all of them or none.

directory of safetensors ─► read_weights ─┐
flat bucket ─► unflatten ─────────────────┴► tensors by name ─► load_state ─► the live model
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from arl.errors import DataError, EngineError
from arl.models.load import DTYPES
from arl.models.model_files import stored_tensors
from arl.models.weights import LORA
from arl.sync.buckets import TensorSpec


def read_weights(directory: str | Path, model: PreTrainedModel | None = None) -> dict[str, Tensor]:
    """Read all tensors of a published version.

    Args:
        model: whose weights they must be, which is seen before any is read; None: any.

    Raises:
        EngineError: a file of `directory` cannot be read, or holds what is no parameter of the model.
    """
    state: dict[str, Tensor] = {}
    try:
        stored = stored_tensors(directory)
        if model is not None:
            shapes = {name: tensor.shape for name, tensor in stored.items()}
            refuse_foreign_tensors(model, shapes, str(directory))
        for file in sorted({tensor.file for tensor in stored.values()}):
            state |= load_file(file)
    except (OSError, SafetensorError, DataError) as error:
        raise EngineError(f"{directory}: the weights cannot be read ({error})") from error
    return state


def load_state(model: PreTrainedModel, state: Mapping[str, Tensor], source: str) -> None:
    """Copy `state`, none of which is foreign to the model, into the model's parameters, cast to their dtype.

    Args:
        source: where the weights come from, for the messages of errors.

    Raises:
        EngineError: a parameter is missing. The model is unchanged then.
    """
    own = versioned(model)
    missing = own.keys() - state.keys()
    if missing:
        raise EngineError(f"{source}: {min(missing)} is missing: these are not weights of this model")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(state[name])


def versioned(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return what each version replaces: all parameters, or the adapters alone where there are some.

    A tied weight appears once, under the name by which it is saved.
    """
    own = dict(model.named_parameters())
    return {name: parameter for name, parameter in own.items() if LORA in name} or own


def refuse_foreign_tensors(model: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]], source: str) -> None:
    """Refuse tensors that do not belong to the model.

    Raises:
        EngineError: the model has no parameter of that name, or one of another shape.
    """
    own = dict(model.named_parameters(remove_duplicate=False))
    for name, shape in sorted(shapes.items()):
        if name not in own:
            raise EngineError(f"{source}: {name} is no parameter of this model")
        expected = tuple(own[name].shape)
        if shape != expected:
            raise EngineError(f"{source}: {name} has shape {shape}, the model's is {expected}")


def specs_of(state: Mapping[str, Tensor]) -> list[TensorSpec]:
    """Describe the tensors of `state`, in its order."""
    specs = []
    for name, tensor in state.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        specs.append(TensorSpec(name, dtype, tuple(tensor.shape)))
    return specs


def unflatten_all(flats: Sequence[Tensor], buckets: Sequence[Sequence[TensorSpec]]) -> dict[str, Tensor]:
    """Return the tensors of all buckets, as views of `flats`."""
    state: dict[str, Tensor] = {}
    for flat, bucket in zip(flats, buckets, strict=True):
        state |= unflatten(flat, bucket)
    return state


def unflatten(flat: Tensor, bucket: Sequence[TensorSpec]) -> dict[str, Tensor]:
    """Return views of `flat`, (bytes of the bucket,) uint8, each with the name, dtype and shape of its spec."""
    views = {}
    start = 0
    for spec in bucket:
        end = start + spec.num_bytes
        part = flat[start:end].view(DTYPES[spec.dtype])
        views[spec.name] = part.view(spec.shape)
        start = end
    return views
