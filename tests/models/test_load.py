"""A model whose files are damaged or incomplete is refused with what is wrong."""

import json
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from arl.config.recipe import TinyModel
from arl.errors import DataError
from arl.models.load import empty_model, load_model
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


def test_weights_that_trainer_and_engine_could_read_differently_are_refused(tmp_path: Path) -> None:
    make_tiny_model(TinyModel(hidden_size=8, layers=1, heads=1), "ab", 0, tmp_path)
    config = tmp_path / "config.json"
    plain = config.read_text()
    change_config(config, transformers_weights="other.safetensors")
    with pytest.raises(DataError, match="transformers_weights names a file of weights"):
        load_model(tmp_path, "float32")
    config.write_text(plain)
    change_config(config, tie_word_embeddings=True)
    with pytest.raises(DataError, match=r"ties lm_head\.weight to model\.embed_tokens\.weight, and they are stored"):
        load_model(tmp_path, "float32")
    config.write_text(plain)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    with pytest.raises(DataError, match=r"has model\.safetensors and model\.safetensors\.index\.json; remove one"):
        load_model(tmp_path, "float32")


@pytest.mark.parametrize("field", [{"num_labels": 10**9}, {"rope_parameters": {"rope_theta": -1.0}}])
def test_a_config_that_would_take_hours_or_compute_no_numbers_is_refused(
    tmp_path: Path, field: dict[str, object]
) -> None:
    make_tiny_model(TinyModel(hidden_size=8, layers=1, heads=1), "ab", 0, tmp_path)
    change_config(tmp_path / "config.json", **field)
    with pytest.raises(DataError, match=r"config\.json: is damaged"):
        load_model(tmp_path, "float32")


def test_layers_that_the_weights_lack_are_refused_before_any_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_model(TinyModel(hidden_size=8, layers=1, heads=1), "ab", 0, tmp_path)
    change_config(tmp_path / "config.json", num_hidden_layers=2000)
    monkeypatch.setattr("arl.models.load.AutoModelForCausalLM", None)
    with pytest.raises(DataError, match=r"num_hidden_layers 2000, and its weights have no model\.layers\.1999"):
        empty_model(tmp_path)


def change_config(file: Path, **fields: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))
