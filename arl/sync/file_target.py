"""Publish weights as files, which every engine can read.

    <directory>/.v<version> ─► rename ─► <directory>/v<version>: a complete directory that `from_pretrained` loads

The directory should lie on a memory-backed file system, because nothing in it has to outlive the run.
"""

import shutil
from pathlib import Path

from safetensors.torch import save_file

from arl.sync.publication_target import State
from arl.types import WeightUpdate


class FileTarget:
    """Write each version to a directory of its own, with the model's config.

    Args:
        directory: exists already; the versions are made in it.
        config_json: content of the model's config.json.
    """

    def __init__(self, directory: Path, config_json: str) -> None:
        self._directory = directory
        self._config_json = config_json

    def write(self, version: int, state: State) -> WeightUpdate:
        """See PublicationTarget."""
        final = self._directory / f"v{version}"
        temporary = self._directory / f".v{version}"
        temporary.mkdir()
        (temporary / "config.json").write_text(self._config_json)
        write_state(temporary, state)
        temporary.rename(final)
        return WeightUpdate(version, str(final))

    def discard(self, update: WeightUpdate) -> None:
        """See PublicationTarget."""
        shutil.rmtree(update.path)


def write_state(directory: Path, state: State) -> None:
    """Write `state` as `from_pretrained` reads it from a directory that also holds the config."""
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
