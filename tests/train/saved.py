"""Read what a checkpoint holds, whichever number of ranks wrote it."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from arl.sync.loading import read_weights


def saved_weights(checkpoint: Path) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in read_weights(checkpoint).items()}


def saved_optimizer(checkpoint: Path) -> dict[str, np.ndarray]:
    """Join the rows of all files, in the order of the ranks that wrote them."""
    parts = [load_file(file) for file in sorted(checkpoint.glob("optimizer*.safetensors"))]
    joined = {}
    for name in sorted({name for part in parts for name in part}):
        rows = [part[name] for part in parts if name in part]
        joined[name] = np.concatenate(rows) if name.startswith("exp_avg") else rows[0]
    return joined
