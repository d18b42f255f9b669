"""Run code for a GPU without one, on a CPU build of torch: tensors of device cuda that have no values, only bytes.

Every operation computes the shape, type and device of its result and refuses tensors of two devices (FakeTensorMode).
Values that are read back are all 1. What stands in the way of that, and what takes its place:

    autograd's engine asks for an accelerator and its stream     fake_gpu.cpp, loaded before torch
    the engine's thread for a device has no FakeTensorMode       backward runs in the thread that calls it
    torch.cuda raises in a CPU build                             functions, streams and events that do nothing
    host memory is pinned                                        it is not
    DeviceMesh, safetensors compute with values of a CPU         they run outside of the mode
    Triton launches a kernel by the address of its tensors       nothing is launched
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from arl.kernels import triton_rows
from arl.models import weights
from arl.train import sharding, training_copy


class LiveBytes:
    """Count the bytes of tensors on the fake GPU, as torch's allocator would: each storage once, until it is freed."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self.reads = 0  # of a number, for which the host would wait
        self.sizes: dict[int, int] = {}  # by storage

    def see(self, storage: torch.UntypedStorage) -> None:
        """Count a storage, or what its size has become."""
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = 0
            weakref.finalize(storage, self._free, key)
        self._resize(key, storage.nbytes())

    def _resize(self, key: int, num_bytes: int) -> None:
        self.now += num_bytes - self.sizes[key]
        self.peak = max(self.peak, self.now)
        self.sizes[key] = num_bytes

    def _free(self, key: int) -> None:
        self.now -= self.sizes.pop(key)


@contextlib.contextmanager
def fake_gpu() -> Iterator[LiveBytes]:
    """Let this process compute on a GPU of which there is only the type. It has been started with fake_gpu.cpp."""
    live = LiveBytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeTensorMode, "avoid_device_init", True)
        _patch_cuda(patch)
        _patch_values(patch, live)
        patch.setattr(triton_rows, "row_stats_kernel", _Kernel())
        patch.setattr(triton_rows, "row_gradient_kernel", _Kernel())
        mode = FakeTensorMode(allow_non_fake_inputs=True)  # arrays of numpy are copied to the device
        with torch.autograd.set_multithreading_enabled(False), mode, _Counts(live), _ValuesAreOne():
            yield live


@contextlib.contextmanager
def fake_ranks(world_size: int) -> Iterator[None]:
    """Be rank 0 of a process group whose collectives return at once, and compute nothing."""
    from torch.testing._internal.distributed import fake_pg  # importing it registers the backend

    dist.init_process_group("fake", rank=0, world_size=world_size, store=fake_pg.FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


class _Stream:
    """Stand for torch.cuda.Stream and torch.cuda.Event."""

    def __init__(self, **_: object) -> None:
        pass

    def nothing(self, *_: object) -> None:
        pass

    def record_event(self, *_: object) -> "_Stream":
        return self

    def elapsed_time(self, _: object) -> float:
        return 1.0

    wait_stream = wait_event = record = wait = synchronize = nothing


def _patch_cuda(patch: pytest.MonkeyPatch) -> None:
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "set_device": None,
        "current_stream": _Stream(),
        "max_memory_allocated": 0,
        "get_device_name": "NVIDIA H200",
        "get_device_capability": (9, 0),
    }
    for name, answer in answers.items():
        patch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    patch.setattr(torch.cuda, "Stream", _Stream)
    patch.setattr(torch.cuda, "Event", _Stream)
    patch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())


def _patch_values(patch: pytest.MonkeyPatch, live: LiveBytes) -> None:
    """Let ranks and files be read outside of the mode, and see what FSDP2 frees by resizing."""
    make_mesh = sharding._mesh
    resize_storage = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, num_bytes: int) -> Any:
        result = resize_storage(storage, num_bytes)
        if storage._cdata in live.sizes:
            live.see(storage)
        return result

    patch.setattr(torch.UntypedStorage, "resize_", resize)
    read_rows = weights.rows_of

    def mesh(*given: Any) -> DeviceMesh:
        with unset_fake_temporarily():
            return make_mesh(*given)

    def read(*given: Any) -> Tensor:
        with unset_fake_temporarily(), torch._C.DisableTorchFunction():
            return read_rows(*given)

    patch.setattr(sharding, "_mesh", mesh)
    for module in (weights, training_copy):
        patch.setattr(module, "rows_of", read)


class _Kernel:
    """Take the place of a Triton kernel: tests/kernels/test_triton.py compiles them."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *_, **__: None


class _ValuesAreOne(TorchFunctionMode):
    """Answer what asks no dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        if func is Tensor.tolist and isinstance(args[0], FakeTensor):
            return np.ones(args[0].shape).tolist()
        if func is Tensor.numpy and isinstance(args[0], FakeTensor):
            return np.ones(args[0].shape, dtype=str(args[0].dtype).removeprefix("torch."))
        return func(*args, **kwargs)


class _Counts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of results on the device; answer what only the device could."""

    def __init__(self, live: LiveBytes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live = live

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return func(*args)
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            self._live.reads += 1
            return 1.0 if args[0].is_floating_point() else 1
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, FakeTensor) and tensor.is_cuda:
                self._live.see(tensor.untyped_storage())
        return result
