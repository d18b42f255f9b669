"""The weights that a run begins with lie where all of its nodes see them."""

import io
from pathlib import Path

from rich.console import Console

from arl.metrics.console import ConsoleDisplay
from arl.run.starting_model import share_with_nodes


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
