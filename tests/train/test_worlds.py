"""Whatever the number of ranks and whatever they hold or compute again: the same loss, gradient and weights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from tests.train import workers, world
from tests.train.columns import comparable
from tests.train.families import make_family

SECONDS = 600
TOLERANCE = 1e-5
TRAINED: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "two": {"ranks": 2},
        "two, cut after use, selective": {"ranks": 2, "reshard": True, "checkpointing": "selective"},
    },
    4: {
        "two copies of two": {"ranks": 4, "shard_ranks": 2},
        "two copies, cut after use": {"ranks": 4, "shard_ranks": 2, "reshard": True, "checkpointing": "full"},
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_family("qwen2-tied", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=[2, 4])
def ran(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """A world of so many processes, after all its cases: told.json, and tensors by the case's name."""
    ranks, directory = request.param, tmp_path_factory.mktemp("world")
    cases = {name: {"model": str(model), "train": train} for name, train in TRAINED[ranks].items()}
    (directory / "cases.json").write_text(json.dumps(cases))
    with workers.world("tests.train.world", [str(directory)], ranks, {"OMP_NUM_THREADS": "1"}) as processes:
        assert [process.wait(SECONDS) for process in processes] == [0] * ranks
    return ranks, directory


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[tuple[Any, Any]]:
    """Train in this process."""
    yield world.trained(str(model), {})
    dist.destroy_process_group()


def test_every_world_trains_to_the_losses_and_weights_of_one_process(ran: tuple[int, Path], alone: Any) -> None:
    (ranks, directory), (metrics, weights) = ran, alone
    told = json.loads((directory / "told.json").read_text())
    for name in TRAINED[ranks]:
        for ours, theirs in zip(metrics, told[name], strict=True):
            compared = {metric for metric in ours if not metric.startswith(("time/", "hardware/"))}
            assert compared == {metric for metric in theirs if not metric.startswith(("time/", "hardware/"))}
            for metric in compared:
                expected = pytest.approx(comparable(ours[metric]), rel=TOLERANCE, abs=TOLERANCE)
                assert comparable(theirs[metric]) == expected, (name, metric)
        found = load_file(directory / f"{name}.safetensors")
        assert found.keys() == weights.keys()
        for key, weight in weights.items():
            torch.testing.assert_close(found[key], weight, rtol=0, atol=TOLERANCE, msg=f"{name}: {key}")
