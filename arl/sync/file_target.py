"""Publish weights as files, which every engine can read.

    <directory>/.v<version> ─► rename ─► <directory>/v<version>: a complete directory that `from_pretrained` loads

On one node the directory should lie on a memory-backed file system, because nothing in it has to outlive the run.

On several nodes it lies on their common file system, and every file is synced before the version is announced, because
a network file system may report only then that it could not store something. A reader on another node then sees all of
it: such file systems promise that whoever opens a file sees what was written before it was closed (close-to-open
consistency), and nobody has looked for the version's name before it was announced, so no node remembers its absence.
"""

import errno
import shutil
from pathlib import Path

from safetensors.torch import save_file

from arl.files import sync_to_disk, writing
from arl.sync.publication_target import State
from arl.types import WeightUpdate


class FileTarget:
    """Write each version to a directory of its own, with the model's config.

    Args:
        directory: exists already; the versions are made in it.
        config_json: content of the model's config.json.
        for_nodes: other nodes read the files.
    """

    def __init__(self, directory: Path, config_json: str, for_nodes: bool = False) -> None:
        self._directory = directory
        self._config_json = config_json
        self._for_nodes = for_nodes

    def write(self, version: int, state: State) -> WeightUpdate:
        """See PublicationTarget.

        Raises:
            DiskError: it cannot be written.
        """
        final = self._directory / f"v{version}"
        temporary = self._directory / f".v{version}"
        with writing(final):
            temporary.mkdir()
            (temporary / "config.json").write_text(self._config_json)
            write_state(temporary, state)
            if self._for_nodes:
                for path in [*temporary.iterdir(), temporary]:
                    sync_to_disk(path)
            temporary.rename(final)
        return WeightUpdate(version, str(final))

    def discard(self, update: WeightUpdate) -> None:
        """See PublicationTarget."""
        try:
            shutil.rmtree(update.path)
        except OSError as error:
            # NFS keeps a file that a process of this node still reads under another name, and so its directory. It goes
            # with the publication directory.
            if error.errno != errno.ENOTEMPTY or not self._for_nodes:
                raise


def write_state(directory: Path, state: State) -> None:
    """Write `state` as `from_pretrained` reads it from a directory that also holds the config."""
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
