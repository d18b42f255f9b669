"""A run measures its versions in a process of its own, whose death or silence costs the run nothing."""

import contextlib
import re
from collections.abc import Callable

import psutil
import pytest

from arl.launch.spawn import RUNNER
from arl.run.evaluation.evaluate_model import LOWEST_PRIORITY
from tests.run.test_train import Command, start

__all__ = ["start"]


@pytest.mark.slow
def test_a_run_that_is_killed_while_versions_wait_measures_each_of_them_once_when_it_is_resumed(
    start: Callable[..., Command],
) -> None:
    settings = ("train.steps=7", "eval.every=2", "output.keep_checkpoints=1")
    killed = start(*settings)
    killed.read_until("step    1")
    process_of(killed, "arl.engine.embedded.server").suspend()
    killed.read_until("versions that are still evaluated")
    killed.process.kill()
    killed.process.wait()
    waiting = re.search(r"still evaluated: (.*)", killed.output)
    assert waiting
    resumed = start(*settings, resume=True)
    assert resumed.end() == 0, resumed.output
    measured = [r["policy_version"] for r in resumed.metrics() if "loss" not in r]
    assert sorted(measured) == [0, 2, 4, 6, 7]
    for version in waiting[1].split(", "):
        assert resumed.output.count(f"evaluation of version {version}:") == 1


def process_of(command: Command, module: str) -> psutil.Process:
    """Wait for the process of a module with the lowest priority."""
    try:
        while True:
            for name, process in command.processes():
                with contextlib.suppress(psutil.NoSuchProcess):  # this one has ended
                    is_runner = RUNNER[-1] in process.cmdline()  # which is about to become it
                    if name == module and not is_runner and process.nice() >= LOWEST_PRIORITY:
                        return process
    except psutil.NoSuchProcess:  # the run has ended
        command.end()
        raise AssertionError(f"no evaluation has begun:\n{command.output}") from None
