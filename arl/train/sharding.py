"""How a model lies over the ranks, and what each of its blocks keeps for the backward.

mesh        (ranks,), or with shard_ranks (copies, shard_ranks): parameters are cut along the last axis
units       every block worth a collective of its own, and the root with all that is left: embedding, norm, head
a block     [compiled] forward, then [checkpointed], then cut: the backward gathers before it computes again
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers import AttentionInterface, PreTrainedModel

from arl.config.recipe import Train
from arl.errors import InputError
from arl.models.attention import ATTENTION, attention
from arl.models.load import DTYPES

WORTH_A_COLLECTIVE = 1 << 20  # parameters; smaller decoder blocks are gathered together with the root
# What selective checkpointing keeps: linear layers and fused attention. The rest is cheap to compute again.
KEPT = ("aten::mm", "aten::addmm", "aten::_scaled_dot_product", "torch_attn::_varlen_attn")


def shard(model: PreTrainedModel, train: Train, device: torch.device) -> FSDPModule:
    """Cut `model`, on the meta device or a real one, over all ranks: FSDP2, or HSDP with train.shard_ranks.

    Raises:
        InputError: the world has a size that train.shard_ranks does not divide.
    """
    mesh, dtype = _mesh(train, device), DTYPES[train.dtype]
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    if train.compile:  # what a pack looks like is no matter for the compiler: it would compile anew for each
        AttentionInterface.register(ATTENTION, torch.compiler.disable(attention))  # type: ignore[no-untyped-call]
    for block in model.model.layers:
        if train.compile:
            block.forward = torch.compile(block.forward, dynamic=True)
        if train.checkpointing != "none":
            block.forward = _checkpointed(block.forward, train.checkpointing == "selective")
        if sum(p.numel() for p in block.parameters()) >= WORTH_A_COLLECTIVE:
            fully_shard(block, mesh=mesh, mp_policy=precision, reshard_after_forward=train.reshard)
    fully_shard(model, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
    assert isinstance(model, FSDPModule)
    return model


def copies(train: Train) -> int:
    """Groups of ranks that each hold all weights."""
    return dist.get_world_size() // (train.shard_ranks or dist.get_world_size())


def _mesh(train: Train, device: torch.device) -> DeviceMesh:
    world, together = dist.get_world_size(), train.shard_ranks
    if together is None or together == world:
        return init_device_mesh(device.type, (world,))
    if world % together:
        raise InputError(f"train.shard_ranks {together} must divide the {world} ranks")
    return init_device_mesh(device.type, (world // together, together), mesh_dim_names=("copy", "shard"))


def _checkpointed(forward: Callable[..., Any], selective: bool) -> Callable[..., Any]:
    """`forward` that keeps its inputs, or with `selective` also what KEPT computes, and computes the rest again."""
    again = functools.partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)
    if selective:
        return functools.partial(again, context_fn=functools.partial(create_selective_checkpoint_contexts, _keep))
    return again


def _keep(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op.name().startswith(KEPT) else CheckpointPolicy.PREFER_RECOMPUTE
