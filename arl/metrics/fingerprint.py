"""Hash the weights of a model: two runs with the same hash learned the same, to the last bit."""

import contextlib
import hashlib
from pathlib import Path

from arl.models.tensor_file import TensorFile, open_tensors


def weights_sha256(model: Path) -> str:
    """Compute the sha256 over the sorted names of the parameters, each followed by its raw float32 bytes.

    Args:
        model: a directory with safetensors files.

    Raises:
        ValueError: a parameter is not float32, as those of checkpoints are.
    """
    digest = hashlib.sha256()
    with contextlib.ExitStack() as files:
        places: dict[str, TensorFile] = {}
        for path in sorted(model.glob("model*.safetensors")):
            file = files.enter_context(open_tensors(path))
            places |= dict.fromkeys(file.tensors, file)
        for name in sorted(places):
            stored = places[name].tensors[name]
            if stored.dtype != "F32":
                raise ValueError(f"{stored.file}: {name} is {stored.dtype}, not F32")
            weight = places[name].read(name)
            digest.update(name.encode())
            digest.update(weight.numpy().data)
    return digest.hexdigest()
