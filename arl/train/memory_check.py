"""Refuse supervised training that cannot fit, before anything is loaded. RL has a planner: arl.run.memory."""

from pathlib import Path

import torch

from arl.config.recipe import Train
from arl.data.model_limits import model_config
from arl.data.model_shape import ModelShape
from arl.errors import InputError
from arl.launch.host_memory import free_memory
from arl.models.load import empty_model
from arl.train.rank_bytes import ParameterCounts, Workload, rank_bytes


def check_memory(path: str | Path, train: Train, tokens: int, on_gpu: bool) -> int:
    """Return the bytes that one rank takes at its peak.

    Args:
        tokens: of the largest micro-batch.

    Raises:
        InputError: the model needs more than one GPU's memory on each rank, or than this host has free on all of them.
        DataError: there is no model, or not one that arl supports.
    """
    parameters = ParameterCounts.of(empty_model(path))
    shape = ModelShape.of(model_config(str(path)))
    work = Workload(tokens, accumulates=True, device="cuda" if on_gpu else "cpu")
    per_rank = rank_bytes(parameters, shape, train, work).peak
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
            f"model.path {path}: training takes {needed / 1e9:.1f} GB on {train.ranks} ranks with micro-batches of "
            f"{tokens:,} tokens, and {where} has {available / 1e9:.1f} GB: choose a smaller model, shorter "
            "pairs, or more ranks"
        )
    return per_rank
