"""The weights that a run begins with lie where all of its nodes see them."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from arl.metrics.console import ConsoleDisplay
from arl.run.file_manifest import write_manifest
from arl.run.starting_model import is_intact, share_with_nodes, show_progress


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


def test_a_cached_model_gets_second_names_in_the_run_directory(tmp_path: Path) -> None:
    model = cached_model(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    found, shown = shared(model, run)
    assert found == run / "model"
    for name in ("config.json", "model.safetensors"):
        assert (found / name).read_text() == f"content of {name}"
        assert not (found / name).is_symlink()
        assert os.path.samefile(found / name, model / name)
    assert not shown


def test_it_is_copied_from_another_file_system_and_the_user_reads_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(target: Path, source: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    model = cached_model(tmp_path)
    run = tmp_path / "run"
    run.mkdir()
    (run / ".model").mkdir()  # of a run that was killed
    found, shown = shared(model, run)
    assert (found / "model.safetensors").read_text() == "content of model.safetensors"
    assert f"GB copied from {model} to {found}, which all nodes see" in shown
    assert [path.name for path in run.iterdir()] == ["model"]


def test_a_model_that_was_made_in_the_run_directory_stays_there(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert shared(tmp_path / "model", tmp_path)[0] == tmp_path / "model"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "manifest.json"])
def test_a_damaged_warm_up_in_the_cache_is_named_and_removed_so_that_it_is_made_anew(tmp_path: Path, name: str) -> None:
    cached = tmp_path / "0123456789abcdef"
    cached.mkdir()
    for file in ("config.json", "model.safetensors"):
        (cached / file).write_text(f"content of {file}")
    write_manifest(cached)
    output = io.StringIO()
    display = ConsoleDisplay(Console(file=output, width=1000))
    assert is_intact(cached, display)
    assert not output.getvalue()
    with (cached / name).open("r+b") as damaged:
        damaged.write(b"!")
    assert not is_intact(cached, display)
    assert "warm-up: the cache is damaged, so it is made anew" in output.getvalue()
    assert name in output.getvalue()
    assert not cached.exists()
    assert not is_intact(cached, display)


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
