"""Hash the weights of a model: two runs with the same hash learned the same, to the last bit."""

import hashlib
from pathlib import Path

import numpy as np
from safetensors import safe_open

from arl.files import find


def weights_sha256(model: Path) -> str:
    """Compute the sha256 over the sorted names of the parameters, each followed by its raw float32 bytes.

    Args:
        model: a directory with safetensors files.

    Raises:
        ValueError: a parameter is not float32, as those of checkpoints are.
    """
    places: dict[str, Path] = {}
    for file in find(model, "model*.safetensors"):
        with safe_open(file, framework="numpy") as tensors:
            places |= dict.fromkeys(tensors.keys(), file)
    digest = hashlib.sha256()
    for name in sorted(places):
        with safe_open(places[name], framework="numpy") as tensors:
            weight = tensors.get_tensor(name)
        if weight.dtype != np.float32:
            raise ValueError(f"{places[name]}: {name} is {weight.dtype}, not float32")
        digest.update(name.encode())
        digest.update(weight.tobytes())
    return digest.hexdigest()
