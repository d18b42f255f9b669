"""Verify that engines hold what the trainer publishes.

    after each swap   checksums of what was published ─► refuse_difference with those of what the engine holds

Importing it does not import torch, because the controller's side does so.
"""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from arl.errors import EngineError
from arl.types import WeightUpdate

if TYPE_CHECKING:
    import torch


def checksums(state: "Mapping[str, torch.Tensor]", dtype: "torch.dtype") -> dict[str, str]:
    """Return the sha256 of each tensor's bytes in `dtype`, in row-major order."""
    import torch

    found = {}
    for name, tensor in state.items():
        values = tensor.detach().to("cpu", dtype).contiguous()
        content = values.flatten().view(torch.uint8).numpy().data
        found[name] = hashlib.sha256(content).hexdigest()
    return found


def refuse_difference(who: str, update: WeightUpdate, found: Mapping[str, str]) -> None:
    """Compare the checksums of `update` with those that an engine has `found` in its model.

    Args:
        who: name of the engine, for the message of the error.

    Raises:
        EngineError: names the first weight whose values are not those that the trainer published.
    """
    for name in sorted(update.checksums.keys() | found.keys()):
        published = update.checksums.get(name)
        held = found.get(name)
        if published != held:
            raise EngineError(
                f"{who}: {name} of version {update.version} is not what the trainer published: its sha256 is "
                f"{held}, and should be {published}"
            )
