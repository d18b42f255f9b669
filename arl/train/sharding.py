"""Shard a model over the ranks, and choose what each of its blocks keeps for the backward.

mesh        (ranks,), or with shard_ranks (copies, shard_ranks): parameters are sharded along the last axis
units       every block that is worth a collective of its own, and the root with the rest: embedding, norm, head
a block     [compiled] forward, then [checkpointed], then sharded: the backward gathers before it computes again
"""

import functools
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers import AttentionInterface, PreTrainedModel

from arl.config.recipe import Train
from arl.models.attention import ATTENTION, attention
from arl.models.load import DTYPES
from arl.sync.process_group import reach_store, serve_store

WORTH_A_COLLECTIVE = 1 << 20  # parameters; smaller decoder blocks are gathered together with the root
# What selective checkpointing keeps: linear layers and fused attention. The rest is cheap to compute again.
KEPT = ("aten::mm", "aten::addmm", "aten::_scaled_dot_product", "torch_attn::_varlen_attn")


def shard(model: PreTrainedModel, train: Train, device: torch.device, frozen: bool = False) -> FSDPModule:
    """Shard `model`, on the meta device or a real one, over all ranks: FSDP2, or HSDP with train.shard_ranks.

    A frozen model has no backward, and stays in host memory while nothing computes with it.
    """
    mesh = _mesh(train, device)
    precision = MixedPrecisionPolicy(param_dtype=DTYPES[train.dtype], reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy() if frozen and device.type == "cuda" else OffloadPolicy()
    if train.compile:
        # Attention is left out, because its inputs have another shape in each pack: each would be compiled anew.
        AttentionInterface.register(ATTENTION, torch.compiler.disable(attention))  # type: ignore[no-untyped-call]
    for block in model.model.layers:
        if train.compile:
            block.forward = torch.compile(block.forward, dynamic=True)
        if train.checkpointing != "none" and not frozen:
            block.forward = _checkpointed(block.forward, train.checkpointing == "selective")
        if sum(p.numel() for p in block.parameters()) >= WORTH_A_COLLECTIVE:
            reshard = train.reshard or frozen
            fully_shard(block, mesh=mesh, mp_policy=precision, reshard_after_forward=reshard, offload_policy=offload)
    fully_shard(model, mesh=mesh, mp_policy=precision, reshard_after_forward=frozen, offload_policy=offload)
    assert isinstance(model, FSDPModule)
    return model


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, or all of one that is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _mesh(train: Train, device: torch.device) -> DeviceMesh:
    world_size = dist.get_world_size()
    per_copy = train.shard_ranks or world_size
    if per_copy == world_size:
        return init_device_mesh(device.type, (world_size,))
    return init_device_mesh(device.type, (world_size // per_copy, per_copy), mesh_dim_names=("copy", "shard"))


def _checkpointed(forward: Callable[..., Any], selective: bool) -> Callable[..., Any]:
    """Return a `forward` that keeps its inputs, with `selective` also what KEPT computes, and recomputes the rest."""
    recomputed = functools.partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)
    if not selective:
        return recomputed
    contexts = functools.partial(create_selective_checkpoint_contexts, _policy)
    return functools.partial(recomputed, context_fn=contexts)


def _policy(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op.name().startswith(KEPT) else CheckpointPolicy.PREFER_RECOMPUTE


def init_ranks(deadline_seconds: float) -> torch.device:
    """Join the process group, or make one of this process alone, and return the device to compute on.

    Reads RANK, WORLD_SIZE and LOCAL_RANK, and with several ranks MASTER_ADDR and MASTER_PORT.

    Args:
        deadline_seconds: of every collective.
    """
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        rank = int(os.environ["RANK"]) if world_size > 1 else 0
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            timeout=timedelta(seconds=deadline_seconds),
            store=_open_store(rank, deadline_seconds) if world_size > 1 else HashStore(),
            rank=rank,
            world_size=world_size,
        )
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")


def _open_store(rank: int, seconds: float) -> Store:
    """Return the store through which ranks meet. If torchrun's agent does not serve it, rank 0 does.

    Rank 0 listens on MASTER_ADDR alone; torch's own socket would listen on every address.
    """
    host = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return serve_store(host, seconds, port)
    return reach_store(host, port, seconds)


CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
EIGHT_BUFFERS = ":4096:8"  # of 4 MiB; with this or :16:8 cuBLAS repeats itself, says NVIDIA


def compute_deterministically() -> None:
    """Turn on torch's deterministic mode in this process; comes before CUDA starts, because cuBLAS then looks once."""
    os.environ.setdefault(CUBLAS_WORKSPACE, EIGHT_BUFFERS)
    torch.use_deterministic_algorithms(True)
    # Nothing here reads memory that nobody has written, so filling it would only cost time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
