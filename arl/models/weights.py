"""Read safetensors into a sharded model: each rank reads only the rows that it owns, never the whole model.

empty_model (meta) ─► shard ─► fill_model: empty shards on the device ─► rows from the files, buffers computed again
"""

from collections.abc import Collection
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Shard
from transformers import PreTrainedModel

from arl.errors import DataError
from arl.models.model_files import stored_tensors

# In the names that PEFT gives to parameters of a model with LoRA adapters; see arl.train.sharded_adapters.
BASE = ".base_layer."
LORA = ".lora_"


def plain_name(name: str) -> str:
    """Return the name that a parameter has in a model without adapters.

    >>> plain_name("model.layers.0.mlp.up_proj.base_layer.weight")
    'model.layers.0.mlp.up_proj.weight'
    """
    return name.replace(BASE, ".")


@torch.no_grad()
def fill_model(
    model: PreTrainedModel,
    path: str | Path,
    device: torch.device,
    in_host_memory: bool = False,
    new: Collection[str] = (),
) -> None:
    """Allocate a model of the meta device, sharded or not, on `device`, and read the weights of `path` into it, cast.

    LoRA adapters are left without values.

    Args:
        in_host_memory: weights stay there, and only buffers are on `device`; FSDP2 brings weights when they compute.
        new: names of parameters that are not read, and begin with 0.

    Raises:
        DataError: a file cannot be read. arl.models.load.check_weights has compared the files with the model.
    """
    model.to_empty(device="cpu" if in_host_memory else device)
    model.tie_weights()  # to_empty has given tied weights a tensor each
    _make_buffers(model, device)
    stored = stored_tensors(path)
    for name, parameter in model.named_parameters():
        first, end = own_rows(parameter)
        if first == end or LORA in name:
            continue
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if name in new:
            local.zero_()
            continue
        file = stored[plain_name(name)].file
        try:
            rows = rows_of(file, plain_name(name), first, end)
        except (OSError, SafetensorError) as error:
            raise DataError(f"model.path {path}: {file.name} cannot be read ({error})") from error
        local.copy_(rows, non_blocking=True)  # so that a GPU casts it rather than the CPU


def own_rows(parameter: Tensor) -> tuple[int, int]:
    """Return first and last + 1 of the rows that this rank holds of `parameter`. FSDP2 cuts as torch.chunk does."""
    if not isinstance(parameter, DTensor):
        return 0, len(parameter)
    mesh = parameter.device_mesh
    axis = shard_axis(parameter)
    return rows_of_part(len(parameter), mesh.size(axis), mesh.get_local_rank(axis))


def shard_axis(parameter: DTensor) -> int:
    """Return the axis of the mesh along which FSDP2 has sharded `parameter`."""
    (axis,) = [i for i, placement in enumerate(parameter.placements) if isinstance(placement, Shard)]
    return axis


def rows_of_part(num_rows: int, parts: int, part: int) -> tuple[int, int]:
    """Return first and last + 1 of the rows of part number `part`, where `num_rows` rows are cut into `parts` parts.

    >>> [rows_of_part(5, 4, part) for part in range(4)]
    [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    per_part = -(-num_rows // parts)
    first = min(per_part * part, num_rows)
    end = min(first + per_part, num_rows)
    return first, end


def rows_of(file: Path, name: str, first: int, end: int) -> Tensor:
    """Return some rows of a tensor in a safetensors file."""
    with safe_open(file, framework="pt") as opened:
        rows: Tensor = opened.get_slice(name)[first:end]
        return rows


def _make_buffers(model: PreTrainedModel, device: torch.device) -> None:
    """Compute rotary frequencies and embedding scales, which no file holds, as `from_pretrained` does."""
    for parameter in model.parameters():
        parameter._is_hf_initialized = True  # initialization leaves these alone
    for module in model.modules():
        if next(module.buffers(recurse=False), None) is not None:
            model._init_weights(module)
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))
