"""A checkpoint is written by all ranks, each its share, and read by any number of them to the last bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from arl.metrics.summary import weights_sha256
from arl.models.load import load_model
from tests.train.families import make_family
from tests.train.saved import saved_optimizer, saved_weights
from tests.train.workers import run_world
from tests.train.world import drawn

WORLDS: dict[str, dict[str, int]] = {
    "one": {"ranks": 1},
    "three": {"ranks": 3},
    "two copies of two": {"ranks": 4, "shard_ranks": 2},
}
FILES = {"one": 1, "three": 3, "two copies of two": 2}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same state, saved by worlds of every kind."""
    model = make_family("qwen2-tied", tmp_path_factory.mktemp("model"))
    found = {}
    for name, train in WORLDS.items():
        found[name] = tmp_path_factory.mktemp("world") / "saved"
        case = {"model": str(model), "directory": str(found[name]), "train": train}
        run_world([("save", case)], train["ranks"], found[name].parent)
    return found


@pytest.mark.parametrize("name", WORLDS)
def test_each_rank_of_one_copy_writes_a_file_and_together_they_are_the_model(saved: dict[str, Path], name: str) -> None:
    directory = saved[name]
    for stem in ("model", "optimizer"):
        assert len(list(directory.glob(f"{stem}*.safetensors"))) == FILES[name]
    assert (directory / "model.safetensors.index.json").exists() == (FILES[name] > 1)
    assert weights_sha256(directory) == weights_sha256(saved["one"])
    loaded = dict(load_model(directory, "float32").named_parameters())
    weights = saved_weights(directory)
    assert loaded.keys() == weights.keys()
    for key, weight in loaded.items():
        assert torch.equal(weight, drawn(key, tuple(weight.shape))), key
    ours, of_one = saved_optimizer(directory), saved_optimizer(saved["one"])
    assert ours.keys() == of_one.keys()
    assert all(np.array_equal(ours[key], of_one[key]) for key in ours)


@pytest.mark.parametrize("name", WORLDS)
def test_any_world_resumes_what_any_other_has_saved_to_the_last_bit(
    saved: dict[str, Path], tmp_path: Path, name: str
) -> None:
    train = WORLDS[name]
    cases = [("resume", {"directory": str(directory), "train": train}) for directory in saved.values()]
    run_world(cases, train["ranks"], tmp_path)
