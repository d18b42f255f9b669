"""New weights into a live model, all or nothing."""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedModel

from arl.errors import EngineError


def load_weights(model: PreTrainedModel, directory: str | Path) -> None:
    """Copy `directory`/model.safetensors into the model's parameters, casting to their dtype.

    Raises:
        EngineError: unreadable, or names or shapes differ from the model's; nothing has been changed then.
    """
    path = Path(directory) / "model.safetensors"
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise EngineError(f"{path}: the weights cannot be read ({error})") from error
    own = dict(model.named_parameters())  # a tied weight appears once, under the name it is saved by
    aliases = dict(model.named_parameters(remove_duplicate=False))
    for name, parameter in own.items():
        if name not in state:
            raise EngineError(f"{path}: {name} is missing: these are not weights of this model")
        if state[name].shape != parameter.shape:
            got, want = tuple(state[name].shape), tuple(parameter.shape)
            raise EngineError(f"{path}: {name} has shape {got}, the model's is {want}")
    if strangers := sorted(state.keys() - aliases.keys()):
        raise EngineError(f"{path}: {strangers[0]} is no parameter of this model")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(state[name])
