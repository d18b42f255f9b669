"""A run measures its versions in a process of its own, whose death or silence costs the run nothing."""

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import psutil
import pyarrow.parquet as pq
import pytest

from arl import clock
from arl.config.recipe_file import load_recipe
from arl.launch.spawn import RUNNER
from arl.metrics.console import ConsoleDisplay
from arl.run.evaluation.during import LOWEST_PRIORITY
from arl.run.preflight import preflight
from arl.run.virtual import measure_in_process
from arl.run.world import RunContext
from tests.processes import survivors
from tests.run.test_train import Command, start

__all__ = ["start"]


def test_a_run_measures_the_versions_that_it_says_but_one_whose_evaluation_is_killed(
    start: Callable[..., Command], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reward is the length, which training changes a lot, so that every version has a score of its own."""
    gate = 32 + 16 * 4
    settings = ("train.steps=6", "train.learning_rate=0.01", "eval.every=2", "output.keep_checkpoints=1")
    command = start(*settings, gates=[gate])
    command.read_until("step    2")
    processes = [process for _, process in command.processes()]
    process_of(command, "arl.cli").kill()
    command.open_gate(gate)
    assert command.end() == 0, command.output
    assert not survivors(processes)
    assert re.findall(r"version (\d) is not evaluated: evaluation .* killed", command.output) == ["2"]
    monkeypatch.chdir(command.directory)
    monkeypatch.setitem(sys.modules, "mine", module_from(command.directory / "mine.py"))
    scores = {r["policy_version"]: r["eval/held_out/accuracy"] for r in command.metrics() if "loss" not in r}
    assert scores.keys() == {0, 4, 6}
    best = max((score, version) for version, score in scores.items() if version)[1]
    link = command.run / "checkpoints" / "best"
    assert link.readlink() == Path(f"step_{best}")
    assert {path.name for path in link.parent.iterdir()} == {"best", f"step_{best}", "step_6"}
    recipe = load_recipe(command.run / "recipe.yaml", ["output.directory=elsewhere"])
    plan = preflight(recipe)
    at_best = RunContext(recipe=recipe, plan=plan, directory=command.run, display=ConsoleDisplay(), first_model=link)
    (again,) = clock.run(lambda: measure_in_process(at_best, plan.measured, link.resolve(), best), virtual=True)
    others = [abs(score - again.mean_reward) for version, score in scores.items() if version != best]
    assert abs(scores[best] - again.mean_reward) < 0.1 * min(others)  # a last bit of a logit may change a token
    assert len(pq.read_table(command.run / "trajectories")) == 6 * 16


def module_from(file: Path) -> ModuleType:
    """Import a file, whatever module of its name another test has imported."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
