"""Hash the weights of a model: two runs with the same hash learned the same, to the last bit."""

import hashlib
from pathlib import Path

from safetensors import safe_open

from arl.models.model_files import tensors_in


def weights_sha256(model: Path) -> str:
    """Compute the sha256 over the sorted names of the parameters, each followed by its raw float32 bytes.

    Args:
        model: a directory with safetensors files of float32, as those of checkpoints are.
    """
    digest = hashlib.sha256()
    stored = {
        name: tensor for path in sorted(model.glob("model*.safetensors")) for name, tensor in tensors_in(path).items()
    }
    for name in sorted(stored):
        tensor = stored[name]
        with safe_open(tensor.file, framework="numpy") as file:
            weight = file.get_tensor(name)
        digest.update(name.encode())
        digest.update(weight.data)
    return digest.hexdigest()
