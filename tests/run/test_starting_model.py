"""The weights that a run begins with lie where all of its nodes see them."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from arl.metrics.console import ConsoleDisplay
from arl.run.starting_model import share_with_nodes, warmup_job
from tests.extending.short_run import ShortRun

READS_A_FILE = """\
from pathlib import Path

from arl.tasks.base import Demonstration, Task, WarmupStage
from arl.types import Problem


class Listed(Task):
    characters = "01="

    def __init__(self, options):
        self._rows = Path(__file__).with_name("shown.txt").read_text().split()

    def problems(self, split, seed):
        return [Problem("0=", "1")]

    @staticmethod
    def reward(problem, response):
        return 1.0

    def warmup(self):
        shown = [Demonstration(Problem("0="), row) for row in self._rows]
        return [
            WarmupStage(
                name="copying",
                demonstrate=lambda rng, count: rng.choices(shown, k=count),
                ask=lambda rng, count: rng.choices(self.problems("training", 0), k=count),
                steps=4,
                learning_rate=1e-2,
            )
        ]
"""


def test_a_cached_model_is_copied_into_the_run_directory_and_the_user_reads_so(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("weights")
    model = tmp_path / "snapshot"
    model.mkdir()
    (model / "model.safetensors").symlink_to(tmp_path / "blob")  # as in the cache of a download
    run = tmp_path / "run"
    (run / ".model").mkdir(parents=True)  # of a run that was killed
    output = io.StringIO()
    found = share_with_nodes(model, run, ConsoleDisplay(Console(file=output, width=1000)))
    assert [path.name for path in run.iterdir()] == ["model"]
    assert (found / "model.safetensors").read_text() == "weights"
    assert not (found / "model.safetensors").is_symlink()
    assert f"copied from {model} to {found}, which all nodes see" in output.getvalue()


def test_a_warm_up_is_made_anew_when_a_file_that_its_demonstrations_come_from_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "listed_task.py").write_text(READS_A_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ARL_CACHE", str(tmp_path / "cache"))
    shown = tmp_path / "shown.txt"
    shown.write_text("0 1 01")
    recipe = ShortRun(tmp_path / "run", "data={task: 'listed_task:Listed'}", "warmup=true").recipe
    _, cached = warmup_job(recipe)
    assert warmup_job(recipe) == (_, cached), "a cache that is never found again is none"
    shown.write_text("0 1 10")
    assert warmup_job(recipe)[1] != cached
