from collections.abc import Iterator

import pytest
import torch.distributed as dist

from tests.train.conftest import tiny

__all__ = ["tiny"]


@pytest.fixture(autouse=True, scope="module")
def _alone() -> Iterator[None]:
    """Process groups are global."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
