"""A response ends with every end token of the model; impossible ones and damaged files are refused at the start."""

import json
from pathlib import Path
from typing import Any

import pytest

from arl.config.recipe import Recipe, TinyModel
from arl.data.model_limits import end_token_ids
from arl.data.tokenizer import load_codec
from arl.errors import DataError, InputError
from arl.models.tiny import make_tiny_model
from arl.run.preflight import preflight
from arl.tasks.running_checksum import CHARACTERS

EOS = len(CHARACTERS) + 2  # after pad and bos
VOCAB = EOS + 1


@pytest.fixture
def model(tmp_path: Path) -> Path:
    shape = TinyModel(hidden_size=16, layers=1, heads=2, intermediate_size=16, context=1024)
    make_tiny_model(shape, CHARACTERS, 0, tmp_path / "model")
    return tmp_path / "model"


def write(model: Path, eos: Any) -> None:
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))


def check(model: Path, **rollout: Any) -> None:
    fields = {
        "model": {"path": str(model)},
        "data": {"task": "running_checksum", "options": {"size": 100}},
        "rollout": {"max_new_tokens": 48, **rollout},
        "output": {"directory": str(model.parent / "runs")},
    }
    preflight(Recipe.model_validate(fields))


@pytest.mark.parametrize(("eos", "expected"), [(3, (EOS, 3)), ([3, EOS, 5], (EOS, 3, 5)), (None, (EOS,))])
def test_the_ids_of_generation_config_are_added_to_the_tokenizers(model: Path, eos: Any, expected: Any) -> None:
    write(model, eos)
    assert load_codec(str(model)).stop_token_ids == expected


def test_without_the_file_the_models_config_counts(model: Path) -> None:
    (model / "generation_config.json").unlink()
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"eos_token_id": [4]}))
    assert end_token_ids(model) == {4: "config.json"}


@pytest.mark.parametrize("text", ["{", '{"eos_token_id": "2"}'])
def test_a_damaged_file_is_refused_and_named(model: Path, text: str) -> None:
    (model / "generation_config.json").write_text(text)
    with pytest.raises(DataError, match=r"generation_config\.json"):
        load_codec(str(model))


def test_stop_tokens_beyond_the_vocabulary_are_refused(model: Path) -> None:
    with pytest.raises(InputError, match=rf"rollout\.stop_token_ids {VOCAB}"):
        check(model, stop_token_ids=[0, VOCAB])
    check(model, stop_token_ids=[0, VOCAB - 1])


def test_a_stop_string_that_the_tokenizer_cannot_write_is_refused(model: Path) -> None:
    with pytest.raises(InputError, match=r"rollout\.stop '<eos>'.*stop_token_ids"):
        check(model, stop=["#", "<eos>"])
