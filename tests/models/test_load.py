"""A model whose files are damaged or incomplete is refused with what is wrong."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from arl.config.recipe import TinyModel
from arl.errors import DataError
from arl.models.load import load_model
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


@pytest.mark.parametrize("left", [0, 4, 100, -4])
def test_a_file_of_weights_that_is_cut_short_is_refused_by_name(tmp_path: Path, left: int) -> None:
    make_tiny_model(TinyModel(hidden_size=8, layers=1, heads=1), "ab", 0, tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(DataError, match=r"model\.safetensors cannot be read"):
        load_model(tmp_path, "float32")


def test_weights_that_trainer_and_engine_would_read_differently_are_refused(tmp_path: Path) -> None:
    make_tiny_model(TinyModel(hidden_size=8, layers=1, heads=1), "ab", 0, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "tie_word_embeddings": True}))
    with pytest.raises(DataError, match=r"ties lm_head\.weight to model\.embed_tokens\.weight, and they are stored"):
        load_model(tmp_path, "float32")
