"""Where a snapshot goes so that engines can take it: one outlet for each transport.

    snapshot ─► Outlet.write ─► WeightUpdate ─► …engines load it… ─► Outlet.discard

file         <dir>/.v<version> ─► rename ─► <dir>/v<version>: what `from_pretrained` loads, complete with its name
memory       the snapshot itself
broadcast    flat buckets, which rank 0's senders read (arl.train.senders)
ipc          flat buckets in shared memory, and handles of their tensors, by bucket, in <dir>/v<version>

Give files a memory-backed file system where there is one: nothing here needs to outlive the run.
"""

import functools
import pickle
import shutil
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

from arl.sync.buckets import TensorSpec, make_buckets
from arl.sync.loading import flatten, specs_of, unflatten
from arl.types import WeightUpdate

State = dict[str, Tensor]


class Outlet(Protocol):
    def write(self, version: int, state: State) -> WeightUpdate:
        """Complete when it returns. `state` changes no more; its tensors are all of one dtype."""

    def discard(self, update: WeightUpdate) -> None:
        """No engine will ask for it again."""


class FileOutlet:
    def __init__(self, directory: Path, config_json: str) -> None:
        self._directory, self._config_json = directory, config_json

    def write(self, version: int, state: State) -> WeightUpdate:
        final, temporary = self._directory / f"v{version}", self._directory / f".v{version}"
        temporary.mkdir()
        (temporary / "config.json").write_text(self._config_json)
        write_state(temporary, state)
        temporary.rename(final)
        return WeightUpdate(version, str(final))

    def discard(self, update: WeightUpdate) -> None:
        shutil.rmtree(update.path)


def write_state(directory: Path, state: State) -> None:
    """As `from_pretrained` reads it, beside a config."""
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})


class MemoryOutlet:
    """For engines in this process; `path` has the config alone."""

    def __init__(self, directory: Path, config_json: str) -> None:
        self._directory = directory
        (directory / "config.json").write_text(config_json)

    def write(self, version: int, state: State) -> WeightUpdate:
        return WeightUpdate(version, str(self._directory), "memory", state)

    def discard(self, update: WeightUpdate) -> None:
        """It goes with its last holder."""


class BroadcastOutlet:
    """Host memory, in pages that a GPU copies from without a detour where there is one."""

    def __init__(self, bucket_bytes: int) -> None:
        self._bucket_bytes = bucket_bytes
        self._flats: dict[int, list[Tensor]] = {}

    def write(self, version: int, state: State) -> WeightUpdate:
        pinned = torch.cuda.is_available()
        self._flats[version] = [
            flatten(state, bucket, torch.empty(size_of(bucket), dtype=torch.uint8, pin_memory=pinned))
            for bucket in make_buckets(specs_of(state), self._bucket_bytes)
        ]
        return WeightUpdate(version, transport="broadcast")

    def discard(self, update: WeightUpdate) -> None:
        del self._flats[update.version]

    def flats(self, version: int) -> list[Tensor]:
        """The buckets of a version that is not discarded, (bytes,) uint8 each."""
        return self._flats[version]


class IpcOutlet:
    """Shared memory: of this process's GPU, or on a CPU a mapped file beside its handles.

    Handles are pickles, the one thing SGLang accepts. Only their path leaves this process; the engine's client reads
    the file and sends it, over loopback and with the run's key, to the server. What a server writes into a tensor that
    it is given, as SGLang adds one to Gemma's norms, the next that loads this version must not see.
    """

    def __init__(self, directory: Path, bucket_bytes: int) -> None:
        self._directory, self._bucket_bytes = directory, bucket_bytes
        self._held: dict[int, list[Tensor]] = {}

    def write(self, version: int, state: State) -> WeightUpdate:
        directory = self._directory / f"v{version}"
        directory.mkdir(parents=True)
        share = _share_on_gpu if torch.cuda.is_available() else _share_in_file
        self._held[version] = []
        for number, bucket in enumerate(make_buckets(specs_of(state), self._bucket_bytes)):
            place = directory / f"{number:06d}"
            flat, handles = share(state, bucket, place)
            self._held[version].append(flat)
            place.with_suffix(".handles").write_bytes(handles)
        return WeightUpdate(version, str(directory), "ipc")

    def discard(self, update: WeightUpdate) -> None:
        del self._held[update.version]
        shutil.rmtree(update.path)


def size_of(bucket: Sequence[TensorSpec]) -> int:
    return sum(spec.num_bytes for spec in bucket)


def _share_on_gpu(state: State, bucket: Sequence[TensorSpec], _: Path) -> tuple[Tensor, bytes]:
    flat = flatten(state, bucket, torch.empty(size_of(bucket), dtype=torch.uint8, device="cuda"))
    torch.cuda.synchronize()
    views = unflatten(flat, bucket).items()
    # Norms are copied there; matrices, which are only read, stay one copy.
    parts = [(name, _Call(torch.clone, view) if view.ndim == 1 else view) for name, view in views]
    return flat, bytes(ForkingPickler.dumps(parts))


def _share_in_file(state: State, bucket: Sequence[TensorSpec], place: Path) -> tuple[Tensor, bytes]:
    """torch's own sharing on a CPU needs a process that outlives those who share; a mapping of a file needs nobody."""
    size, path = size_of(bucket), str(place.with_suffix(".bytes"))
    flat = flatten(state, bucket, torch.from_file(path, shared=True, size=size, dtype=torch.uint8))
    views = list(unflatten(flat, bucket).items())
    dtype, shared = views[0][1].dtype, False  # a mapping of its own: it shares pages until it writes to them
    whole = _Call(functools.partial(torch.from_file, dtype=dtype), path, shared, size // dtype.itemsize)
    parts = [
        (name, _Call(torch.as_strided, whole, tuple(v.shape), v.stride(), v.storage_offset())) for name, v in views
    ]
    return flat, pickle.dumps(parts)


class _Call:
    """Pickles as what the call returns where it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._function, self._arguments = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._function, self._arguments
