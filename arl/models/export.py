"""Write the weights of a checkpoint in the dtype that its run began with, as a model to hand on."""

import json
from pathlib import Path

from huggingface_hub import save_torch_state_dict

from arl.data.hub import SOURCE
from arl.errors import InputError
from arl.files import remove_any, writing
from arl.models.load import DTYPES
from arl.models.model_files import read_description, stored_tensors, write_description
from arl.models.weights import rows_of


def export_model(model: Path, output: Path | None, dtype: str | None) -> tuple[Path, str]:
    """Write the model of a directory to another one, in files of at most 5 GB, all or nothing.

    Args:
        output: None: beside `model`, with the dtype behind its name.
        dtype: None: that of the weights that arl began with.

    Returns:
        Where it is, and its dtype.

    Raises:
        InputError: the output exists, or there is no such dtype.
        DataError: the model cannot be read.
        DiskError: the output cannot be written.
    """
    description = read_description(model)
    source = json.loads(description.pop(SOURCE))
    dtype = dtype or str(source["dtype"])
    if dtype not in DTYPES:
        raise InputError(f"--dtype {dtype}: give one of {', '.join(DTYPES)}")
    output = output or model.with_name(f"{model.name}-{dtype}")
    if output.exists():
        raise InputError(f"--output {output}: exists already; remove it, or choose another one")
    stored = stored_tensors(model)
    weights = {name: rows_of(at.file, name, 0, at.shape[0]).to(DTYPES[dtype]) for name, at in stored.items()}
    partial = output.with_name(f".{output.name}.partial")
    with writing(output):
        remove_any(partial)  # of an export that was killed
        write_description(description, partial, dtype)
        save_torch_state_dict(weights, partial)
        partial.rename(output)
    return output, dtype
