"""The weights that a run begins with lie where all of its nodes see them."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from arl.metrics.console import ConsoleDisplay
from arl.run.starting_model import share_with_nodes, show_progress


def cached_model(directory: Path) -> Path:
    """Make the cache of a download: names that point to the files."""
    blobs = directory / "blobs"
    snapshot = directory / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for name in ("config.json", "model.safetensors"):
        (blobs / f"{name}-blob").write_text(f"content of {name}")
        (snapshot / name).symlink_to(blobs / f"{name}-blob")
    return snapshot


def shared(model: Path, run: Path) -> tuple[Path, str]:
    """Share `model`; return where it lies then, and what the user is shown."""
    output = io.StringIO()
    found = share_with_nodes(model, run, ConsoleDisplay(Console(file=output, width=1000)))
    return found, output.getvalue()


def test_a_cached_model_is_copied_into_the_run_directory_and_the_user_reads_so(tmp_path: Path) -> None:
    model = cached_model(tmp_path)
    run = tmp_path / "run"
    (run / ".model").mkdir(parents=True)  # of a run that was killed
    found, shown = shared(model, run)
    assert [path.name for path in run.iterdir()] == ["model"]
    for name in ("config.json", "model.safetensors"):
        assert (found / name).read_text() == f"content of {name}"
        assert not (found / name).is_symlink()
    assert f"copied from {model} to {found}, which all nodes see" in shown


def test_a_model_that_was_made_in_the_run_directory_stays_there(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert shared(tmp_path / "model", tmp_path)[0] == tmp_path / "model"


STRANGE_LINES = [
    '{"accuracy": 0.5}',
    '{"accuracy": ',
    '{"stage": "of the task", "step": 3, "accuracy": 0.5, "seconds": 1.0}',
    '{"stage": "counting", "step": "third", "accuracy": 0.5, "seconds": 1.0}',
    "a line of text with accuracy",
]


@pytest.mark.parametrize("line", STRANGE_LINES)
def test_what_a_task_prints_while_it_warms_up_is_no_progress(line: str) -> None:
    output = io.StringIO()
    display = ConsoleDisplay(Console(file=output, width=1000))
    display.begin("warm-up", 30)
    show_progress(line, {"counting": 20}, display)
    assert "accuracy" not in output.getvalue()
    show_progress(
        '{"stage": "counting", "step": 3, "loss": 1, "accuracy": 0.5, "seconds": 1.0}', {"counting": 20}, display
    )
    assert "warm-up    3  counting: accuracy 0.500  1 s" in output.getvalue()
