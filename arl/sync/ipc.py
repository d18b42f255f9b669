"""Publish weights in shared memory, with handles of their tensors in files: one rank's part.

    <directory>/v<version>/<rank>/handles             a pickled list of (name, handle) of all weights, for SGLang
    <directory>/v<version>/<rank>/<bucket>.bytes      a bucket on a CPU; on a GPU it stays in the GPU's memory

Each rank shares the memory of its own device with the engine's worker on that device. The folder of a rank gets its
name when it is complete, and rank 0 announces a version when every rank has completed its own (arl.train.publication).

This process sends only the path of the handles. The engine's client reads the files and sends them over loopback, with
the run's key, to the server. Handles are pickles because SGLang accepts nothing else: of a list of (name, a call that
returns the tensor there).

A server may write into a tensor that it is given: SGLang adds one to Gemma's norms. The next server that loads the
same version must not see that, so whatever could be written to is copied when it is mapped.
"""

import functools
import pickle
import shutil
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from arl.sync.buckets import HANDLES, TensorSpec, bucket_bytes_of, make_buckets
from arl.sync.loading import unflatten
from arl.sync.targets import State
from arl.sync.version_buffers import VersionBuffers, allocate_buckets
from arl.types import WeightUpdate


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
        self._handles: dict[int, bytes] = {}  # by address of a version's first bucket on the GPU
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
        if self.buffers is not None:
            handles = self._lasting_handles(flats)
        else:
            parts = []
            for number, (flat, bucket) in enumerate(zip(flats, self._buckets, strict=True)):
                parts += handles_of_file(final / _name(number), flat, bucket)
            handles = pickle.dumps(parts)
        (partial / HANDLES).write_bytes(handles)
        self._mapped = []  # the files stay
        partial.rename(final)

    def write(self, version: int, state: State) -> WeightUpdate:
        """See PublicationTarget. Every rank has shared its part of `state` before."""
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
                str(partial / _name(number)), shared=True, size=bucket_bytes_of(bucket), dtype=torch.uint8
            )
            self._mapped.append(pages)
        return self._mapped

    def _lasting_handles(self, flats: Sequence[Tensor]) -> bytes:
        """Return the handles of a version's buckets on the GPU, which are made once.

        They stay good as long as its memory lives. torch keeps a record of each handle that it makes until the memory
        is freed, and this memory never is.
        """
        address = flats[0].data_ptr()
        if address not in self._handles:
            parts = []
            for flat, bucket in zip(flats, self._buckets, strict=True):
                parts += handles_on_gpu(flat, bucket)
            self._handles[address] = bytes(ForkingPickler.dumps(parts))
        return self._handles[address]


def _name(number: int) -> str:
    """Return the name of the file of bucket `number`."""
    return f"{number}.bytes"


DEVICE_ARGUMENT = 6  # of torch's rebuild_cuda_tensor: the device's index, for which SGLang also takes a UUID


def handles_on_gpu(flat: Tensor, bucket: Sequence[TensorSpec]) -> list[tuple[str, Any]]:
    """Return names and CUDA's handles of the tensors that lie in `flat`, (bytes of the bucket,) uint8."""
    parts = []
    for name, view in unflatten(flat, bucket).items():
        handle = _handle_on_gpu(view)
        is_vector = view.ndim == 1
        # A vector is copied where it is mapped; matrices, which are only read, are not.
        part = _Call(torch.clone, handle) if is_vector else handle
        parts.append((name, part))
    return parts


def handles_of_file(path: Path, flat: Tensor, bucket: Sequence[TensorSpec]) -> list[tuple[str, Any]]:
    """Return names and handles that map the file `path`, whose content is `flat`: (bytes of the bucket,) uint8.

    torch's own sharing on a CPU needs a process that outlives those who share. A mapped file needs no process.
    """
    views = unflatten(flat, bucket)
    dtype = next(iter(views.values())).dtype
    map_file = functools.partial(torch.from_file, dtype=dtype)
    shared = False  # each reader maps it for itself: pages are shared until the reader writes to them
    size = len(flat) // dtype.itemsize
    whole = _Call(map_file, str(path), shared, size)
    parts = []
    for name, view in views.items():
        shape = tuple(view.shape)
        part = _Call(torch.as_strided, whole, shape, view.stride(), view.storage_offset())
        parts.append((name, part))
    return parts


class _Call:
    """Pickle as what `function(*arguments)` returns where it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._function = function
        self._arguments = arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._function, self._arguments


def _handle_on_gpu(view: Tensor) -> _Call:
    """Return torch's handle of `view`, which names the GPU by its UUID.

    This process may have another number for the GPU than the engine's worker.
    """
    rebuild, arguments = reductions.reduce_tensor(view)  # type: ignore[no-untyped-call]
    device = torch.cuda.get_device_properties(view.device)
    before = arguments[:DEVICE_ARGUMENT]
    after = arguments[DEVICE_ARGUMENT + 1 :]
    return _Call(rebuild, *before, str(device.uuid), *after)
