"""A model whose files are damaged or incomplete is refused with what is wrong."""

from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from arl.config.recipe import TinyModel
from arl.errors import DataError
from arl.models.load import load_model
from arl.models.model_files import stored_files
from arl.models.tiny import make_tiny_model


def test_a_model_that_lacks_a_weight_is_refused_and_never_drawn_at_random(tmp_path: Path) -> None:
    make_tiny_model(TinyModel(hidden_size=8, layers=1, heads=1), "ab", 0, tmp_path)
    load_model(tmp_path, "float32")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["lm_head.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"its weights lack lm_head.weight, and 0 others"):
        load_model(tmp_path, "float32")


@pytest.mark.parametrize("text", ["{", "{}", "[]"])
def test_an_index_of_weights_that_is_damaged_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(DataError, match=r"model\.safetensors\.index\.json cannot be read"):
        stored_files(tmp_path)
