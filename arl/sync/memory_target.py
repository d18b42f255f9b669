"""Publish weights to engines in this process, as the tensors themselves."""

from pathlib import Path

from arl.sync.publication_target import State
from arl.types import WeightUpdate


class MemoryTarget:
    """Hand each snapshot on as it is.

    Args:
        directory: is given the config, which checkpoints copy from there.
        config_json: content of the model's config.json.
    """

    def __init__(self, directory: Path, config_json: str) -> None:
        self._directory = directory
        (directory / "config.json").write_text(config_json)

    def write(self, version: int, state: State) -> WeightUpdate:
        """See PublicationTarget."""
        return WeightUpdate(version, str(self._directory), "memory", state)

    def discard(self, update: WeightUpdate) -> None:
        """Do nothing, because the tensors are freed with their last reference."""
