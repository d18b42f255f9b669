"""Publish weights in shared memory, with handles of their tensors in files: one rank's part.

    <directory>/v<version>/<rank>/<bucket>.handles     a pickled list of (name, handle), for SGLang
    <directory>/v<version>/<rank>/<bucket>.bytes       the bucket itself on a CPU; on a GPU it stays in the GPU's memory

Each rank shares the memory of its own device with the engine's worker on that device. The folder of a rank gets its
name when it is complete, and rank 0 announces a version when every rank has completed its own (arl.train.publication).

The handles are made by arl.sync.handles. This process sends only their path. The engine's client reads the file and
sends it over loopback, with the run's key, to the server.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from arl.sync.bucket_memory import allocate_buckets
from arl.sync.buckets import TensorSpec, bucket_bytes_of, make_buckets
from arl.sync.handles import handles_of_file, handles_on_gpu
from arl.sync.loading import specs_of, unflatten_all
from arl.sync.publication_target import State
from arl.sync.version_buffers import VersionBuffers
from arl.sync.weight_messages import HANDLES
from arl.types import WeightUpdate

BYTES = ".bytes"
WRITE_SECONDS = 60.0  # longest wait for a buffer when whole tensors are given


class IpcTarget:
    """Share the memory of this process's GPU, or on a CPU mapped files that lie beside their handles.

    Args:
        directory: the versions are made in it.
        bucket_bytes: most bytes of a bucket; a larger tensor has a bucket of its own.
        kept: number of versions in the GPU's memory, which is used again. Two are enough where engines load each
            version before the next step begins, as in mode collocated.
        rank: names the folder of this rank.
    """

    def __init__(self, directory: Path, bucket_bytes: int, kept: int = 2, rank: int = 0) -> None:
        self._directory = directory
        self._bucket_bytes = bucket_bytes
        self._rank = rank
        self._buckets: list[list[TensorSpec]] = []
        self._mapped: list[Tensor] = []  # the files of the version that is being filled
        self._handles: dict[int, bytes] = {}  # by address of a bucket on the GPU
        on_gpu = torch.cuda.is_available()
        self.buffers = VersionBuffers(kept, self._allocate) if on_gpu else None

    def reserve(self, version: int, specs: Sequence[TensorSpec], seconds: float) -> list[Tensor]:
        """Return memory for the buckets of `version`, which the caller fills before `share`.

        Args:
            specs: of all tensors, the same for every version.

        Raises:
            TrainerError: no buffer was free within `seconds`.
        """
        self._buckets = make_buckets(specs, self._bucket_bytes)
        self._partial(version).mkdir(parents=True)
        if self.buffers is not None:
            return self.buffers.reserve(version, seconds)
        return self._map_files(version)

    def share(self, version: int, flats: Sequence[Tensor]) -> None:
        """Write the handles of what `reserve` returned for `version`, now that it is filled."""
        partial = self._partial(version)
        final = self._folder(version)
        for number, (flat, bucket) in enumerate(zip(flats, self._buckets, strict=True)):
            if flat.is_cuda:
                handles = self._lasting_handles(flat, bucket)
            else:
                handles = handles_of_file(final / _file_name(number, BYTES), flat, bucket)
            file = partial / _file_name(number, HANDLES)
            file.write_bytes(handles)
        self._mapped = []  # the files stay
        partial.rename(final)

    def write(self, version: int, state: State) -> WeightUpdate:
        """See PublicationTarget. Copies and shares `state`, unless the version is shared already."""
        if not os.path.exists(self._folder(version)):
            flats = self.reserve(version, specs_of(state), WRITE_SECONDS)
            views = unflatten_all(flats, self._buckets)
            for name, view in views.items():
                view.copy_(state[name])
            if self.buffers is not None:
                torch.cuda.synchronize()
            self.share(version, flats)
        return WeightUpdate(version, str(self._folder(version).parent), "ipc")

    def discard(self, update: WeightUpdate) -> None:
        """See PublicationTarget. Removes the folders of all ranks."""
        shutil.rmtree(update.path)

    def _folder(self, version: int) -> Path:
        return self._directory / f"v{version}" / str(self._rank)

    def _partial(self, version: int) -> Path:
        return self._directory / f"v{version}" / f".{self._rank}"

    def _allocate(self) -> list[Tensor]:
        return allocate_buckets(self._buckets, "device")

    def _map_files(self, version: int) -> list[Tensor]:
        """Make a file for each bucket, and return the files' pages."""
        partial = self._partial(version)
        self._mapped = []
        for number, bucket in enumerate(self._buckets):
            pages = torch.from_file(
                str(partial / _file_name(number, BYTES)), shared=True, size=bucket_bytes_of(bucket), dtype=torch.uint8
            )
            self._mapped.append(pages)
        return self._mapped

    def _lasting_handles(self, flat: Tensor, bucket: Sequence[TensorSpec]) -> bytes:
        """Return the handles of a bucket on the GPU, which are made once.

        They stay good as long as its memory lives. torch keeps a record of each handle that it makes until the memory
        is freed, and this memory never is.
        """
        address = flat.data_ptr()
        if address not in self._handles:
            self._handles[address] = handles_on_gpu(flat, bucket)
        return self._handles[address]


def _file_name(number: int, suffix: str) -> str:
    """Return the name of a file of bucket `number`; names are in the order of the buckets."""
    return f"{number:06d}{suffix}"
