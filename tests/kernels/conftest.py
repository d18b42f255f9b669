"""Under TRITON_INTERPRET=1 the tests of this folder run Triton's kernels, interpreted, in place of PyTorch's."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from arl.kernels import head, rows, scan

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_float64 = pytest.mark.skipif(INTERPRETED, reason="the Triton kernels compute in float32")
settings.register_profile("kernels", max_examples=8 if INTERPRETED else 60)


@pytest.fixture(autouse=True, scope="session")
def _triton_in_place_of_pytorch() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if INTERPRETED:
            from arl.kernels import triton_rows, triton_scan

            patch.setattr(rows, "_row_stats", triton_rows.row_stats)
            patch.setattr(rows, "_row_gradient", triton_rows.row_gradient)
            patch.setattr(scan, "_segment_scan", triton_scan.segment_scan)
        yield


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows a chunk, so that small cases have several."""
    monkeypatch.setattr(rows, "CHUNK_BYTES", 4 * 101 * 8)
    monkeypatch.setattr(head, "CHUNK_BYTES", {"cpu": 4 * 101 * 12, "cuda": 4 * 101 * 12})
