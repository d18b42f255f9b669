"""Run code for a GPU without one, on a CPU build of torch: tensors of device cuda that have no values.

Every operation computes the shape, type and device of its result and refuses tensors of two devices (FakeTensorMode).
Values that are read back are all 1. What stands in the way of that, and what takes its place:

    autograd's engine asks for an accelerator and its stream     fake_gpu.cpp, loaded before torch
    the engine's thread for a device has no FakeTensorMode       backward runs in the thread that calls it
    torch.tensor(…, device="cuda") allocates before it is faked  FakeTensorMode.avoid_device_init, as without a GPU
    torch.cuda raises in a CPU build                             functions and streams that do nothing
    host memory is pinned by its address                         nothing is pinned
    DeviceMesh, safetensors compute with values of a CPU         they run outside of the mode
    Triton launches a kernel by the address of its tensors       nothing is launched
    FakeTensorMode multiplies matrices of different types        `_Checks` refuses them, as cuBLAS does
"""

import contextlib
from collections import Counter
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

from arl.kernels import triton_rows
from arl.models import weights
from arl.sync import version_buffers
from arl.train import optimizer_files, sharding

aten = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)
PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "dot": (0, 1), "mv": (0, 1)}  # operands


@contextlib.contextmanager
def fake_gpu() -> Iterator[Counter[str]]:
    """Let this process compute on a GPU of which there is only the type. It has been started with fake_gpu.cpp.

    Yields how often each operation was computed, by its name.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeTensorMode, "avoid_device_init", True)
        _patch_cuda(patch)
        _patch_values(patch)
        patch.setattr(triton_rows, "row_stats_kernel", _Kernel())
        patch.setattr(triton_rows, "row_gradient_kernel", _Kernel())
        mode = FakeTensorMode(allow_non_fake_inputs=True)  # arrays of numpy are copied to the device
        with torch.autograd.set_multithreading_enabled(False), mode, _Checks() as checks, _ValuesAreOne():
            yield checks.computed


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

    wait_stream = wait_event = record = wait = synchronize = nothing


def _patch_cuda(patch: pytest.MonkeyPatch) -> None:
    answers = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "set_device": None,
        "current_stream": _Stream(),
        "synchronize": None,
        "max_memory_allocated": 0,
        "get_device_name": "NVIDIA H200",
        "get_device_capability": (9, 0),
    }
    for name, answer in answers.items():
        patch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    patch.setattr(torch.cuda, "Stream", _Stream)
    patch.setattr(torch.cuda, "Event", _Stream)
    patch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    patch.setattr(version_buffers, "_pin", lambda _: None)


def _patch_values(patch: pytest.MonkeyPatch) -> None:
    """Let ranks and files be read outside of the mode."""
    make_mesh = sharding._mesh
    read_rows = weights.rows_of

    def mesh(*given: Any) -> DeviceMesh:
        with unset_fake_temporarily():
            return make_mesh(*given)

    def read(*given: Any) -> Tensor:
        with unset_fake_temporarily(), torch._C.DisableTorchFunction():
            return read_rows(*given)

    patch.setattr(sharding, "_mesh", mesh)
    for module in (weights, optimizer_files):
        patch.setattr(module, "rows_of", read)


class _Kernel:
    """Take the place of a Triton kernel: tests/kernels/test_triton.py compiles them."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return lambda *_, **__: None


class _ValuesAreOne(TorchFunctionMode):
    """Answer what asks no dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.tolist and isinstance(args[0], FakeTensor):
            return np.ones(args[0].shape).tolist()
        if func is Tensor.numpy and isinstance(args[0], FakeTensor):
            return np.ones(args[0].shape, dtype=str(args[0].dtype).removeprefix("torch."))
        return func(*args, **(kwargs or {}))


class _Checks(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuse what only the device would refuse; answer what only the device could."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.computed: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return func(*args)
        kwargs = kwargs or {}
        self.computed[str(func)] += 1
        name = func._opname.rstrip("_")
        if func is aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return 1.0 if args[0].is_floating_point() else 1
        if name in PRODUCTS:
            _check_product(func, [args[i] for i in PRODUCTS[name]], args, kwargs)
        return func(*args, **kwargs)


def _check_product(func: Any, operands: list[Tensor], args: Any, kwargs: Any) -> None:
    """Refuse operands of two types, and a result wider than cuBLAS makes of them."""
    kinds = {x.dtype for x in operands}
    if len(kinds) > 1:
        raise RuntimeError(f"{func}: expected operands of one type, got {kinds}")
    (kind,) = kinds
    overload = func._overloadname
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    result = given.get("out_dtype", kind)
    if result != kind and not (kind in HALVES and result == torch.float32):
        raise RuntimeError(f"{func}: no product of {kind} in {result}")
    if overload.startswith("dtype") and not all(x.is_cuda for x in operands):
        raise RuntimeError(f"{func}: out_dtype is for CUDA alone")
    for other in ("self", "out"):
        tensor = given.get(other)
        is_operand = any(tensor is x for x in operands)
        if isinstance(tensor, Tensor) and not is_operand and tensor.dtype != result:
            raise RuntimeError(f"{func}: {other} is {tensor.dtype}, the product {result}")
