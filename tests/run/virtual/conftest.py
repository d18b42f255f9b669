"""Run small recipes in virtual time."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.run.virtual.test_virtual import Start, run_in


@pytest.fixture(autouse=True, scope="module")
def _alone() -> Iterator[None]:
    """Process groups are global."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Return what runs RECIPE with other settings, below tmp_path/runs."""
    return functools.partial(run_in, tmp_path)
