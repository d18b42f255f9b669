"""Make handles of a bucket's tensors, by which another process on the same machine maps them.

Handles are pickles because SGLang accepts nothing else: of a list of (name, a call that returns the tensor there).

A server may write into a tensor that it is given: SGLang adds one to Gemma's norms. The next server that loads the
same version must not see that, so whatever could be written to is copied when it is mapped.
"""

import functools
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from arl.sync.buckets import TensorSpec
from arl.sync.loading import unflatten

DEVICE_ARGUMENT = 6  # of torch's rebuild_cuda_tensor: the device's index, for which SGLang also takes a UUID


def handles_on_gpu(flat: Tensor, bucket: Sequence[TensorSpec]) -> bytes:
    """Return CUDA's handles of the tensors that lie in `flat`, (bytes of the bucket,) uint8."""
    parts = []
    for name, view in unflatten(flat, bucket).items():
        handle = _handle_on_gpu(view)
        is_vector = view.ndim == 1
        # A vector is copied where it is mapped; matrices, which are only read, are not.
        part = _Call(torch.clone, handle) if is_vector else handle
        parts.append((name, part))
    return bytes(ForkingPickler.dumps(parts))


def handles_of_file(path: Path, flat: Tensor, bucket: Sequence[TensorSpec]) -> bytes:
    """Return handles that map the file `path`, whose content is `flat`: (bytes of the bucket,) uint8, on a CPU.

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
    return pickle.dumps(parts)


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
