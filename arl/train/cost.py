"""What a training step costs: floating-point operations for the MFU, bytes for whether it fits at all."""

from pathlib import Path

import torch
from transformers import PreTrainedModel

from arl.config.recipe import Train
from arl.data.model_limits import Flops
from arl.errors import InputError
from arl.launch.host_memory import free_memory, peak_resident
from arl.models.load import DTYPES, empty_model
from arl.train.packer import MicroBatch, keys_seen

# Dense bfloat16 FLOP/s of one device, from NVIDIA's data sheets; the first name that is part of the device's.
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
    """Forward and backward of a pack: three times its forward; what checkpointing computes again is not counted.

    Tokens that trajectories share, and rows that nobody scores, are not computed, and not counted.
    """
    return 3 * flops.of(len(batch.token_ids), keys_seen(batch), len(batch.score_positions))


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """FLOP/s that the device's maker promises; None where that is not known, as on a CPU."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for known, peak in PEAKS.items() if known in name), None)


def peak_memory(device: torch.device) -> float:
    """Largest number of bytes so far: allocated by torch on a GPU; resident in this process on a CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return float(peak_resident())


def bytes_per_rank(model: PreTrainedModel, train: Train) -> int:
    """Of weights, gradients and AdamW's moments; activations come on top of it.

    Cut over the ranks: 4 + 4 + 8 bytes a parameter. Gathered for computing: one copy in train.dtype and its float32
    gradient, of the whole model, or with train.reshard of the largest unit. The whole gradient is cut unit by unit in
    the last backward, and all that was gathered is freed before AdamW.
    """
    everything, *blocks = (sum(p.numel() for p in module.parameters()) for module in (model, *model.model.layers))
    largest = max(*blocks, everything - sum(blocks))
    together, gathered = train.shard_ranks or train.ranks, DTYPES[train.dtype].itemsize + 4
    if train.reshard:
        return int(16 * everything // together + gathered * largest)
    return int(max(16 * everything // together, 12 * everything // together + gathered * everything))


def check_memory(path: str | Path, train: Train, on_gpu: bool) -> int:
    """Refuse what could never be trained here, before anything is loaded; return the bytes of one rank.

    Raises:
        InputError: the model needs more than one GPU's memory on each rank, or than this host has free on all of them.
        DataError: there is no model, or not one that arl supports.
    """
    per_rank = needed = bytes_per_rank(empty_model(path), train)
    if on_gpu:
        devices = range(torch.cuda.device_count())
        where, available = "a GPU", min(torch.cuda.get_device_properties(i).total_memory for i in devices)
    else:
        where, needed, available = "this host", needed * train.ranks, free_memory()
    if needed > available:
        raise InputError(
            f"model.path {path}: weights, gradients and AdamW take {needed / 1e9:.1f} GB with train.ranks "
            f"{train.ranks}, and {where} has {available / 1e9:.1f} GB: choose a smaller model, set train.reshard to "
            "true, or, on GPUs, raise train.ranks or train.shard_ranks"
        )
    return per_rank
