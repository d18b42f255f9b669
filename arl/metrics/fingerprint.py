"""Hash the weights of a model: two runs with the same hash learned the same, to the last bit."""

import hashlib
from pathlib import Path

from arl.files import find
from arl.models.tensor_file import TensorFile


def weights_sha256(model: Path) -> str:
    """Compute the sha256 over the sorted names of the parameters, each followed by its raw float32 bytes.

    Args:
        model: a directory with safetensors files.

    Raises:
        ValueError: a parameter is not float32, as those of checkpoints are.
    """
    places: dict[str, Path] = {}
    for file in find(model, "model*.safetensors"):
        with TensorFile(file) as opened:
            places |= dict.fromkeys(opened.tensors, file)
    digest = hashlib.sha256()
    for name in sorted(places):
        with TensorFile(places[name]) as opened:
            dtype = opened.tensors[name].dtype
            if dtype != "F32":
                raise ValueError(f"{places[name]}: {name} is {dtype}, not F32")
            weight = opened.read(name)
        digest.update(name.encode())
        digest.update(weight.numpy().data)
    return digest.hexdigest()
