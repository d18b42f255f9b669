"""A run that is resumed is not shown as ended while its recipe and its checkpoint are still checked."""

import io
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from arl.config.recipe import Recipe
from arl.config.recipe_file import dump_recipe, load_recipe
from arl.errors import InputError
from arl.metrics.console import ConsoleDisplay
from arl.metrics.run_files import LOCK, RECIPE
from arl.metrics.run_status import RESUMING, RunStatus, read_status, shown_as_resuming
from arl.metrics.status_view import draw_status
from arl.run import resume
from tests.watch.statuses import a_run, a_status

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


def test_a_run_that_cannot_be_resumed_is_shown_as_it_was_and_meanwhile_as_one_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = a_status(end="failed: trainer-0 died")
    run = a_run(tmp_path, ended)
    recipe = load_recipe(QUICKSTART, [])
    (run / RECIPE).write_text(dump_recipe(recipe))
    (run / LOCK).touch()
    seen: list[RunStatus] = []

    def refuse(checked: Recipe) -> None:
        seen.append(read_status(run))
        raise InputError("its data is gone")

    monkeypatch.setattr(resume, "preflight", refuse)
    with pytest.raises(InputError, match="its data is gone"), resume.begin(recipe, ConsoleDisplay(), run / RECIPE):
        pass
    (meanwhile,) = seen
    assert (meanwhile.end, meanwhile.stage, meanwhile.version) == ("", RESUMING, ended.version)
    written = io.StringIO()
    shown = Console(file=written, width=100)
    shown.print(draw_status(meanwhile, "runs/small"))
    assert f"runs/small · {RESUMING} · version 12 of 60" in written.getvalue()
    assert read_status(run) == ended


def test_a_run_without_a_status_gets_none_by_being_resumed(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    with shown_as_resuming(run):
        assert not (run / "status.json").exists()


@pytest.mark.parametrize("cause", [InputError("its data is gone"), KeyboardInterrupt()])
def test_why_a_run_cannot_be_resumed_is_raised_also_if_its_status_cannot_be_written_back(
    tmp_path: Path, cause: BaseException
) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    run = a_run(directory, a_status(end="finished"))

    def fail() -> None:
        shutil.rmtree(run)
        raise cause

    with pytest.raises(type(cause)) as raised, shown_as_resuming(run):
        fail()
    assert raised.value is cause
    (note,) = cause.__notes__
    assert re.search(r"could not be written back: .* cannot be written: its directory .* was deleted", note)
