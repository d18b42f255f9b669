"""A run is refused only for room that its published weights really take."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from arl.config.recipe import Recipe, TinyModel
from arl.errors import InputError
from arl.models.tiny import make_tiny_model
from arl.sync import publication_directory as directories
from arl.types import Transport


@pytest.mark.parametrize(
    ("transport", "on_gpus", "is_refused"),
    [("ipc", True, False), ("ipc", False, True), ("file", True, True), ("broadcast", True, False)],
)
def test_only_transports_that_write_weights_to_files_need_room_for_them(
    transport: Transport, on_gpus: bool, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe.model_validate(
        {"data": {"task": "running_checksum"}, "model": {"tiny": {}}, "train": {"dtype": "float32"}}
    )
    model = tmp_path / "model"
    make_tiny_model(TinyModel(), "01", 0, model)
    monkeypatch.setattr(directories, "SHARED_MEMORY", tmp_path / "nowhere")
    monkeypatch.setattr("arl.sync.publication_directory.shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    opened = directories.publication_directory(recipe, model, tmp_path, None, transport, on_gpus=on_gpus)
    if is_refused:
        with pytest.raises(InputError, match=r"publishing weights needs 0\.\d\d GB free there"), opened:
            pass
    else:
        with opened as directory:
            assert directory.parent == tmp_path
