"""Whatever the number of ranks and whatever they hold or compute again: the same loss, gradient and weights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from tests.train import world
from tests.train.columns import comparable
from tests.train.families import make_family
from tests.train.workers import run_world

TOLERANCE = 1e-5
LAYERS = 2
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


@pytest.fixture(scope="module")
def alone(model: Path) -> Iterator[tuple[Any, Any]]:
    """Train in this process."""
    yield world.trained(str(model), {})
    dist.destroy_process_group()


def test_two_ranks_train_policy_and_critic_as_one_does(model: Path, alone: Any, tmp_path: Path) -> None:
    settings = {"critic": {"learning_rate": 1.5e-4, "clip": 0.2}}
    metrics, weights = world.trained(str(model), settings)
    run_world([("train", {"model": str(model), "train": settings, "directory": str(tmp_path / "two")})], 2, tmp_path)
    told = json.loads((tmp_path / "two" / "metrics.json").read_text())
    for ours, theirs in zip(metrics, told, strict=True):
        for metric in (name for name in ours if name.startswith(("critic/", "loss"))):
            assert theirs[metric] == pytest.approx(ours[metric], rel=TOLERANCE, abs=TOLERANCE), metric
    found = load_file(tmp_path / "two" / "weights")
    assert found.keys() == weights.keys()
    for key, weight in weights.items():
        torch.testing.assert_close(found[key], weight, rtol=0, atol=TOLERANCE, msg=key)


@pytest.mark.parametrize("ranks", TRAINED)
def test_every_world_trains_to_the_losses_and_weights_of_one_process(
    ranks: int, model: Path, alone: Any, tmp_path: Path
) -> None:
    metrics, weights = alone
    cases = []
    for name, train in TRAINED[ranks].items():
        cases.append(("train", {"model": str(model), "train": train, "directory": str(tmp_path / name)}))
    run_world(cases, ranks, tmp_path)
    counts = {}
    for name in TRAINED[ranks]:
        told = json.loads((tmp_path / name / "metrics.json").read_text())
        for ours, theirs in zip(metrics, told, strict=True):
            compared = {metric for metric in ours if not metric.startswith(("time/", "hardware/"))}
            assert compared == {metric for metric in theirs if not metric.startswith(("time/", "hardware/"))}
            for metric in compared:
                expected = pytest.approx(comparable(ours[metric]), rel=TOLERANCE, abs=TOLERANCE)
                assert comparable(theirs[metric]) == expected, (name, metric)
        counts[name] = json.loads((tmp_path / name / "counts.json").read_text())
        found = load_file(tmp_path / name / "weights")
        assert found.keys() == weights.keys()
        for key, weight in weights.items():
            torch.testing.assert_close(found[key], weight, rtol=0, atol=TOLERANCE, msg=f"{name}: {key}")
    if ranks == 2:  # each unit once an update, and once more for the halves of a step's gradient, however it is packed
        collectives = (LAYERS + 1) * 3 * world.STEPS
        assert counts["two"] == {"gather": collectives, "scatter": collectives}


OBJECTIVES: dict[str, dict[str, Any]] = {
    "ppo": {"kind": "ppo", "dual_clip": 3.0, "normalizer": "sequence_means"},
    "gspo": {"kind": "gspo", "clip_low": 0.1, "clip_high": 0.1},
    "cispo": {"kind": "cispo", "normalizer": "sequences"},
    "sapo": {"kind": "sapo", "entropy_coefficient": 0.01},
    "dr-grpo": {"normalizer": "constant", "constant": 48, "weight": {"mode": "off"}},
    "icepop": {"weight": {"low": 0.5, "mode": "mask", "denominator": "narrowed"}},
    "two corrections": {
        "weight": [{"high": 2.0}, {"level": "sequence_mean", "criterion": "k3", "high": 0.5, "mode": "reject"}]
    },
}


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_no_objective_depends_on_ranks_packing_or_the_order_of_tokens(
    ranks: int, model: Path, alone: Any, tmp_path: Path
) -> None:
    cases = []
    for name, objective in OBJECTIVES.items():
        train = {"ranks": ranks, "capacity": 16_384 // ranks}
        directory = str(tmp_path / name)
        cases.append(("train", {"model": str(model), "train": train, "directory": directory, "objective": objective}))
    run_world(cases, ranks, tmp_path)
    for name, objective in OBJECTIVES.items():
        _, weights = world.trained(str(model), {}, objective)
        found = load_file(tmp_path / name / "weights")
        for key, weight in weights.items():
            torch.testing.assert_close(found[key], weight, rtol=0, atol=TOLERANCE, msg=f"{name}: {key}")
