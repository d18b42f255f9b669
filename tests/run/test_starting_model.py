"""The weights that a run begins with lie where all of its nodes see them."""

import io
from pathlib import Path

from rich.console import Console

from arl.metrics.console import ConsoleDisplay
from arl.run.starting_model import share_with_nodes


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
