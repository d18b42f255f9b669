"""Train PEFT's LoRA adapters on sharded weights; see arl.models.lora.

inject ─► shard ─► fill_model ─► draw_adapters ─► training ─► merged: W + (alpha / rank) · B A
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from arl.models.lora import A, B
from arl.models.weights import BASE, LORA, own_rows, plain_name
from arl.train.sharding import local_part


def draw_adapters(model: PreTrainedModel, seed: int) -> None:
    """Set A as PEFT does, and B to 0, so that the model is still its base; the same on any number of ranks."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(A):
            whole = torch.empty(parameter.shape)
            torch.nn.init.kaiming_uniform_(whole, a=math.sqrt(5), generator=generator)
            first, end = own_rows(parameter)
            local_part(parameter.detach()).copy_(whole[first:end])
        elif name.endswith(B):
            local_part(parameter.detach()).zero_()


def merged(shards: Mapping[str, Tensor], parameters: Mapping[str, Tensor], scaling: float) -> dict[str, Tensor]:
    """Return this rank's rows of W + scaling · B A, float32, by the names of the base model. Collective.

    Args:
        shards: name -> this rank's rows of each parameter of `parameters`.
    """
    found = {}
    for name, shard in shards.items():
        if LORA in name:
            continue
        layer, is_adapted, _ = name.partition(BASE)
        weight = shard.float()
        if is_adapted and name.endswith(".weight"):
            whole = parameters[layer + A].detach()
            whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
            weight = weight + scaling * (shards[layer + B] @ whole)
        found[plain_name(name)] = weight
    return found
