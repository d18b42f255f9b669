"""Choose which tests run, in how many processes, with how many examples.

The whole suite runs in two processes (pytest-xdist), a part of it in one; `-n` decides otherwise. Tests marked `slow`,
`long` or `sglang` run only where `-m` names them. `.ci/run` adds the slow ones, those of SGLang, and every property
test with five times the examples.
"""

import gc
import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from arl.engine.sglang.sglang_backend import find_sglang
from tests import examples

assert examples.__doc__, "importing it registers the profiles"
settings.load_profile("few")

TESTS = Path(__file__).parent
PROCESSES = 2
# The tests of these modules share little and take long: each runs in whichever process is free. Those of every other
# module stay in one process, because they share fixtures.
SPREAD = {"test_train.py", "test_resume.py", "test_sglang_faults.py", "test_virtual.py"}
# Whole runs and real engines take long. They begin, so that both processes have something to do until the end.
LONG_ROOMS = ("/cluster/", "/run/", "/engine/", "/sweep/", "/train/")
# Of these modules of tests/engine, the tests of a real SGLang share one server, and so run in one process.
ON_ONE_SERVER = {"test_agreement.py", "test_contract.py", "test_transport.py"}


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Use both cores for the whole suite. A few tests are done sooner than a second process has imported torch."""
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.keyword
    is_ours_to_say = getattr(config.option, "numprocesses", 0) is None and not hasattr(config, "workerinput")
    if is_whole and is_ours_to_say and not _is_gpu_alone(config) and not config.option.usepdb:
        config.option.numprocesses = PROCESSES
        config.option.loadscopereorder = False  # it would begin with the modules that have the most tests


def pytest_configure(config: pytest.Config) -> None:
    """GPUs are there for `pytest -m gpu`, and for a `test_gpu.py` that is named; other tests compute on the CPU."""
    torch.set_num_threads(1)  # sums are added in one order, whichever tests run
    named = [Path(argument.partition("::")[0]).name for argument in config.args]
    if not _is_gpu_alone(config) and set(named) != {"test_gpu.py"}:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _is_gpu_alone(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "gpu")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep tests that share fixtures in one process; pytest-xdist reads the mark before any hook of ours could sort."""
    if item.path.name not in SPREAD:
        item.add_marker(pytest.mark.xdist_group(_group_of(item)))


def _group_of(item: pytest.Item) -> str:
    """Return the name of the group of tests that run in the process that `item` runs in."""
    if "/cluster/" in item.nodeid:
        return "clusters, of which there is one at a time"
    if item.get_closest_marker("sglang") and item.path.name in ON_ONE_SERVER:
        return "tests on one SGLang server"
    return str(item.path.relative_to(TESTS))


@pytest.hookimpl(trylast=True)  # after -m has deselected what it deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow and long tests, and those of a real SGLang, unless `-m` names them; begin with what takes long."""
    for mark in ("slow", "long", "sglang"):
        if mark not in config.option.markexpr:
            left_out = [item for item in items if item.get_closest_marker(mark)]
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not item.get_closest_marker(mark)]
    items.sort(key=_takes_long, reverse=True)


def _takes_long(item: pytest.Item) -> tuple[bool, bool]:
    """Return what `item` is sorted by: slow tests begin, then those of LONG_ROOMS."""
    is_slow = item.get_closest_marker("slow") or item.get_closest_marker("sglang")
    return bool(is_slow), any(room in item.nodeid for room in LONG_ROOMS)


def pytest_collection_finish() -> None:
    """Keep imported modules out of garbage collection, which would search them for 0.2 s in the middle of a test."""
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(scope="session")
def sglang_python() -> str:
    """Return the interpreter that has SGLang. Tests that need it are not run where there is none."""
    return find_sglang(None).place
