"""A checkpoint is written by all ranks, each its share, and read by any number of them to the last bit."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from arl.metrics.summary import weights_sha256
from arl.models.load import load_model
from arl.sync.buckets import ITEM_BYTES, TensorSpec, bucket_bytes_of
from arl.train.gathering import deal
from tests.train import workers
from tests.train.checkpoint_world import drawn, learner
from tests.train.families import make_family
from tests.train.saved import saved_optimizer, saved_weights

SECONDS = 600
WORLDS: dict[str, dict[str, int]] = {
    "one": {"ranks": 1},
    "two": {"ranks": 2},
    "three": {"ranks": 3},
    "two copies of two": {"ranks": 4, "shard_ranks": 2},
    "copies": {"ranks": 2, "shard_ranks": 1},
}
FILES = {"one": 1, "two": 2, "three": 3, "two copies of two": 2, "copies": 1}
SHAPES = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), max_size=12)


def run(case: dict[str, Any], ranks: int, directory: Path) -> None:
    """Start a world for `case` and wait for it; an assertion that fails in a rank is one here."""
    file = directory / "case.json"
    file.write_text(json.dumps(case))
    with workers.world("tests.train.checkpoint_world", [str(file)], ranks, {"OMP_NUM_THREADS": "1"}) as processes:
        assert [process.wait(SECONDS) for process in processes] == [0] * ranks


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same state, saved by worlds of every kind."""
    model = make_family("qwen2-tied", tmp_path_factory.mktemp("model"))
    found = {}
    for name, train in WORLDS.items():
        directory = tmp_path_factory.mktemp("world")
        found[name] = directory / "saved"
        run({"save": {"model": str(model), "directory": str(found[name]), "train": train}}, train["ranks"], directory)
    return found


@pytest.fixture
def _alone() -> Iterator[None]:
    yield
    dist.destroy_process_group()


@given(SHAPES, st.integers(1, 9), st.sampled_from(sorted(ITEM_BYTES)))
def test_every_tensor_has_one_rank_and_none_has_more_than_a_fair_share_and_the_largest(
    shapes: list[list[int]], parts: int, dtype: str
) -> None:
    specs = [TensorSpec(str(number), dtype, tuple(shape)) for number, shape in enumerate(shapes)]
    shares = deal(specs, parts)
    assert len(shares) == parts
    assert sorted(spec.name for share in shares for spec in share) == sorted(spec.name for spec in specs)
    for share in shares:
        assert [int(spec.name) for spec in share] == sorted(int(spec.name) for spec in share)
    largest = max((spec.num_bytes for spec in specs), default=0)
    assert max(bucket_bytes_of(share) for share in shares) <= bucket_bytes_of(specs) / parts + largest


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_copy_every_whole_tensor_of_any_shape_once(tmp_path: Path, ranks: int) -> None:
    run({"copy_drawn_shapes": {}}, ranks, tmp_path)


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


def test_ranks_write_equal_shares_of_the_optimizer_rather_than_one_of_them_all(saved: dict[str, Path]) -> None:
    whole = (saved["one"] / "optimizer.safetensors").stat().st_size
    for file in saved["three"].glob("optimizer*.safetensors"):
        assert 0.2 < file.stat().st_size / whole < 0.5


@pytest.mark.parametrize(
    "name",
    [
        "one",
        pytest.param("two", marks=pytest.mark.slow),
        "three",
        "two copies of two",
        pytest.param("copies", marks=pytest.mark.slow),
    ],
)
def test_any_world_resumes_what_any_other_has_saved_to_the_last_bit(
    saved: dict[str, Path], tmp_path: Path, name: str
) -> None:
    directories = [str(directory) for directory in saved.values()]
    train = WORLDS[name]
    run({"resume": {"directories": directories, "train": train}}, train["ranks"], tmp_path)


@pytest.mark.usefixtures("_alone")
def test_a_save_keeps_nothing_of_what_a_killed_save_of_two_ranks_has_left(
    saved: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(saved["two"], tmp_path / ".tuned.partial")
    tuned = learner(str(make_family("qwen2-tied", tmp_path / "model")), {"ranks": 1}, resumed=False)
    tuned.policy.save(tmp_path / "tuned", tokenizer_path=tmp_path / "model")
    assert sorted(file.name for file in (tmp_path / "tuned").glob("model*")) == ["model.safetensors"]
    assert weights_sha256(tmp_path / "tuned") == weights_sha256(tmp_path / "model")
