"""Define what a published version is written to, so that engines can load it: memory, files, buckets of a broadcast.

    snapshot ─► PublicationTarget.write ─► WeightUpdate ─► engines load it ─► PublicationTarget.discard

There is one target for each transport: those of this file, and arl.sync.ipc.
"""

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from safetensors.torch import save_file
from torch import Tensor

from arl.files import sync_to_disk, writing
from arl.sync.buckets import TensorSpec, make_buckets
from arl.sync.choose import BROADCAST_BUFFERS, BufferPlace
from arl.sync.version_buffers import VersionBuffers, allocate_buckets
from arl.types import WeightUpdate

State = dict[str, Tensor]


class PublicationTarget(Protocol):
    """Keep published weights until no engine will ask for them.

    A target that keeps everything in memory is four lines (arl.sync.targets has the real one):

        class Kept:
            def write(self, version: int, state: State) -> WeightUpdate:
                return WeightUpdate(version, transport="memory", state=state)

            def discard(self, update: WeightUpdate) -> None:
                "The tensors are freed with their last reference."
    """

    def write(self, version: int, state: State) -> WeightUpdate:
        """Make `state` loadable under `version`; it is complete when this returns.

        Args:
            state: name -> tensor, all of one dtype. The caller does not change it afterwards.
        """

    def discard(self, update: WeightUpdate) -> None:
        """Free a version that no engine will ask for again."""


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


class BroadcastTarget:
    """Keep the buckets of the newest version and of the one that engines are sent.

    Args:
        bucket_bytes: most bytes of a bucket; a larger tensor has a bucket of its own.
        place: the GPU of this process, or the host's memory.
    """

    def __init__(self, bucket_bytes: int, place: BufferPlace = "host") -> None:
        self._bucket_bytes = bucket_bytes
        self._place: BufferPlace = place
        self._specs: Sequence[TensorSpec] = ()
        self.buffers = VersionBuffers(BROADCAST_BUFFERS, self._allocate)

    def reserve(self, version: int, specs: Sequence[TensorSpec], seconds: float) -> list[Tensor]:
        """Return memory for the buckets of `version`, which the caller fills before `write`.

        Args:
            specs: of all tensors, the same for every version.

        Raises:
            TrainerError: no buffer was free within `seconds`.
        """
        self._specs = specs
        return self.buffers.reserve(version, seconds)

    def write(self, version: int, state: State) -> WeightUpdate:
        """See PublicationTarget. `state` lies in what `reserve` returned."""
        self.buffers.offer(version)
        return WeightUpdate(version, transport="broadcast")

    def discard(self, update: WeightUpdate) -> None:
        """Do nothing, because the memory is used again."""

    def _allocate(self) -> list[Tensor]:
        return allocate_buckets(make_buckets(self._specs, self._bucket_bytes), self._place)


def write_state(directory: Path, state: State) -> None:
    """Write `state` as `from_pretrained` reads it from a directory that also holds the config."""
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
