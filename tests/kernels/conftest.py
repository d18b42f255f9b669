"""Run Triton's kernels, interpreted, in place of PyTorch's in the tests of this folder, under TRITON_INTERPRET=1."""

import math
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from arl.kernels import head, rows

aten = torch.ops.aten
NEW = {aten.empty.memory_format, aten.new_empty.default, aten.empty_like.default}
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_float64 = pytest.mark.skipif(INTERPRETED, reason="the Triton kernels compute in float32")
PROPORTION = 0.2 if INTERPRETED else 1.0  # of examples: the interpreter is slow


@pytest.fixture(autouse=True, scope="session")
def _triton_in_place_of_pytorch() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if INTERPRETED:
            from arl.kernels import triton_rows

            patch.setattr(rows, "_row_stats", triton_rows.row_stats)
            patch.setattr(rows, "_row_gradient", triton_rows.row_gradient)
        yield


class UnwrittenMemoryIsNan(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Fill new tensors with NaN, so that a result shows it if it was computed from memory that nothing has written."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **kwargs or {})
        if func in NEW and made.is_floating_point():
            made.fill_(math.nan)
        return made


@pytest.fixture
def unwritten_memory_is_nan() -> Iterator[None]:
    with UnwrittenMemoryIsNan():  # type: ignore[no-untyped-call]
        assert torch.ones(1).new_empty(1).isnan()
        yield


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a few rows in a chunk, so that small cases have several chunks."""
    monkeypatch.setattr(rows, "CHUNK_BYTES", 4 * 101 * 8)
    monkeypatch.setattr(head, "CHUNK_BYTES", {"cpu": 4 * 101 * 12, "cuda": 4 * 101 * 12})
