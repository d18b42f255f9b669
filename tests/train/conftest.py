from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from arl.config.recipe import TinyModel
from arl.models.tiny import make_tiny_model
from arl.tasks import running_checksum


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer, 32-wide Llama over the checksum's vocabulary."""
    directory = tmp_path_factory.mktemp("tiny")
    shape = TinyModel(hidden_size=32, layers=2, heads=4, intermediate_size=64)
    make_tiny_model(shape, running_checksum.CHARACTERS, seed=1, directory=directory)
    return directory


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """Let the learners of a module be a process group of one rank, and end the group after its last test."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
