"""What tests of several rooms need."""

import gc
import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from arl.engine.sglang.installed import find_sglang
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


NOT_RUN = pytest.StashKey[str]()


@pytest.hookimpl(trylast=True)  # after -m has deselected what it deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of a real SGLang where there is none: one line of the summary, instead of a skip each.

    Raises:
        UsageError: they were asked for by -m.
    """
    needing = [item for item in items if item.get_closest_marker("sglang")]
    if not needing:
        return
    try:
        find_sglang(None)
    except InputError as error:
        if "sglang" in config.getoption("markexpr"):
            raise pytest.UsageError(str(error)) from error
        items[:] = [item for item in items if item not in needing]
        config.hook.pytest_deselected(items=needing)
        config.stash[NOT_RUN] = f"{len(needing)} tests of a real SGLang were not run: {str(error).splitlines()[0]}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if NOT_RUN in config.stash:
        terminalreporter.write_line(config.stash[NOT_RUN])


def pytest_collection_finish() -> None:
    """Else all that is imported is searched for garbage, for 0.2 s, in the middle of some test."""
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(scope="session")
def sglang_python() -> str:
    """The interpreter that has SGLang; where there is none, the tests that need it are not run."""
    return find_sglang(None).path
