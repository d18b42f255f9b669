"""What tests of several rooms need."""

import gc
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from arl.engine.sglang import server_command
from arl.errors import InputError

# Examples are not timed: how long one takes is the machine's business.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """GPUs are there for `pytest -m gpu`, and for a `test_gpu.py` that is named; other tests compute on the CPU."""
    torch.set_num_threads(1)  # sums are added in one order, whichever tests run
    named = [Path(argument.partition("::")[0]).name for argument in config.args]
    if config.getoption("markexpr") != "gpu" and set(named) != {"test_gpu.py"}:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_finish() -> None:
    """Else all that is imported is searched for garbage, for 0.2 s, in the middle of some test."""
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(scope="session")
def sglang_python() -> str:
    """The interpreter that has SGLang; without one the test is skipped."""
    try:
        return server_command.look_at(None).path
    except InputError as error:
        pytest.skip(str(error))
