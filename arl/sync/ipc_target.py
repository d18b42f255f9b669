"""Publish weights in shared memory, with handles of their tensors in files.

    <directory>/v<version>/<bucket>.handles     a pickled list of (name, handle), for SGLang
    <directory>/v<version>/<bucket>.bytes       the bucket itself on a CPU; on a GPU it stays in the GPU's memory

Handles are pickles because SGLang accepts nothing else. This process sends only their path. The engine's client reads
the file and sends it over loopback, with the run's key, to the server.
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

from arl.sync.buckets import TensorSpec, bucket_bytes_of, make_buckets
from arl.sync.loading import flatten, specs_of, unflatten
from arl.sync.publication_target import State
from arl.sync.weight_messages import HANDLES
from arl.types import WeightUpdate

BYTES = ".bytes"


class IpcTarget:
    """Share the memory of this process's GPU, or on a CPU a mapped file that lies beside its handles.

    A server may write into a tensor that it is given: SGLang adds one to Gemma's norms. The next server that loads the
    same version must not see that, so whatever could be written to is copied when it is mapped.

    Args:
        directory: the versions are made in it.
        bucket_bytes: most bytes of a bucket; a larger tensor has a bucket of its own.
    """

    def __init__(self, directory: Path, bucket_bytes: int) -> None:
        self._directory = directory
        self._bucket_bytes = bucket_bytes
        self._held: dict[int, list[Tensor]] = {}

    def write(self, version: int, state: State) -> WeightUpdate:
        """See PublicationTarget."""
        directory = self._directory / f"v{version}"
        directory.mkdir(parents=True)
        share = _share_on_gpu if torch.cuda.is_available() else _share_in_file
        self._held[version] = []
        for number, bucket in enumerate(make_buckets(specs_of(state), self._bucket_bytes)):
            place = directory / f"{number:06d}"
            flat, handles = share(state, bucket, place)
            self._held[version].append(flat)
            place.with_suffix(HANDLES).write_bytes(handles)
        return WeightUpdate(version, str(directory), "ipc")

    def discard(self, update: WeightUpdate) -> None:
        """See PublicationTarget."""
        del self._held[update.version]
        shutil.rmtree(update.path)


def _share_on_gpu(state: State, bucket: Sequence[TensorSpec], _: Path) -> tuple[Tensor, bytes]:
    """Return the bucket in the GPU's memory, and CUDA's handles of its tensors."""
    flat = torch.empty(bucket_bytes_of(bucket), dtype=torch.uint8, device="cuda")
    flatten(state, bucket, flat)
    torch.cuda.synchronize()
    parts: list[tuple[str, Any]] = []
    for name, view in unflatten(flat, bucket).items():
        # A vector is copied where it is mapped; matrices, which are only read, are not.
        part = _Call(torch.clone, view) if view.ndim == 1 else view
        parts.append((name, part))
    return flat, bytes(ForkingPickler.dumps(parts))


def _share_in_file(state: State, bucket: Sequence[TensorSpec], place: Path) -> tuple[Tensor, bytes]:
    """Return the bucket in a mapped file, and handles that map the file again.

    torch's own sharing on a CPU needs a process that outlives those who share. A mapped file needs no process.
    """
    num_bytes = bucket_bytes_of(bucket)
    path = str(place.with_suffix(BYTES))
    flat = torch.from_file(path, shared=True, size=num_bytes, dtype=torch.uint8)
    flatten(state, bucket, flat)
    views = unflatten(flat, bucket)
    dtype = next(iter(views.values())).dtype
    map_file = functools.partial(torch.from_file, dtype=dtype)
    shared = False  # each reader maps it for itself: pages are shared until the reader writes to them
    whole = _Call(map_file, path, shared, num_bytes // dtype.itemsize)
    parts = []
    for name, view in views.items():
        shape = tuple(view.shape)
        part = _Call(torch.as_strided, whole, shape, view.stride(), view.storage_offset())
        parts.append((name, part))
    return flat, pickle.dumps(parts)


class _Call:
    """Pickle as what `function(*arguments)` returns where it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._function = function
        self._arguments = arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._function, self._arguments
