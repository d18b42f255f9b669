"""Estimate what a training step costs: floating-point operations for the MFU, and bytes, to know whether it fits."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from arl.config.recipe import Train
from arl.data.model_limits import Flops
from arl.errors import InputError
from arl.launch.host_memory import free_memory, peak_resident
from arl.models.load import DTYPES, empty_model
from arl.train.micro_batch import MicroBatch, forward_flops

# Dense bfloat16 FLOP/s of one device, from NVIDIA's data sheets. The first name that is part of the device's counts.
PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "GB200": 2500e12,
    "B200": 2250e12,
}


def training_flops(flops: Flops, batch: MicroBatch) -> float:
    """Return the operations of a pack's forward and backward: three times its forward.

    What checkpointing computes again is not counted.
    """
    return 3 * forward_flops(batch, flops)


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the FLOP/s that the device's maker states; None where that is not known, as on a CPU."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return None
    name = torch.cuda.get_device_name(device)
    for known, peak in PEAKS.items():
        if known in name:
            return peak
    return None


def peak_memory(device: torch.device) -> float:
    """Return the largest number of bytes so far: allocated by torch on a GPU, resident in this process on a CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return float(peak_resident())


def bytes_per_rank(model: PreTrainedModel, train: Train) -> int:
    """Return the bytes of weights, gradients and AdamW's moments on one rank; activations come on top of it.

    Sharded over the ranks: 4 + 4 + 8 bytes a parameter. Gathered for computing: one copy in train.dtype and its float32
    gradient, of the whole model, or with train.reshard of the largest unit. The whole gradient is sharded unit by unit
    in the last backward, and all that was gathered is freed before AdamW's update.
    """
    total = _num_parameters(model)
    blocks = [_num_parameters(block) for block in model.model.layers]
    largest = max(*blocks, total - sum(blocks))
    per_copy = train.shard_ranks or train.ranks
    gathered_bytes = DTYPES[train.dtype].itemsize + 4  # per parameter
    sharded = 16 * total // per_copy
    if train.reshard:
        return sharded + gathered_bytes * largest
    sharded_while_gathered = 12 * total // per_copy  # without the gradient, which is gathered
    return max(sharded, sharded_while_gathered + gathered_bytes * total)


def _num_parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def check_memory(path: str | Path, train: Train, on_gpu: bool) -> int:
    """Refuse what could never be trained here, before anything is loaded; return the bytes of one rank.

    Raises:
        InputError: the model needs more than one GPU's memory on each rank, or than this host has free on all of them.
        DataError: there is no model, or not one that arl supports.
    """
    per_rank = bytes_per_rank(empty_model(path), train)
    if on_gpu:
        where = "a GPU"
        needed = per_rank
        devices = range(torch.cuda.device_count())
        available = min(torch.cuda.get_device_properties(i).total_memory for i in devices)
    else:
        where = "this host"
        needed = per_rank * train.ranks
        available = free_memory()
    if needed > available:
        raise InputError(
            f"model.path {path}: weights, gradients and AdamW take {needed / 1e9:.1f} GB with train.ranks "
            f"{train.ranks}, and {where} has {available / 1e9:.1f} GB: choose a smaller model, set train.reshard to "
            "true, or, on GPUs, raise train.ranks or train.shard_ranks"
        )
    return per_rank
