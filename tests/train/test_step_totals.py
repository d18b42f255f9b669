"""Sums over micro-batches give the metrics that their definitions give over all tokens at once."""

import math
import random
from typing import ClassVar

import pytest
import torch

from arl.config.objective_section import Statistic
from arl.metrics.names import FIRST_AGES
from arl.train.algorithms.ppo import PPO
from arl.train.sharded_model import Update
from arl.train.sharding import init_ranks
from arl.train.step_metrics import ENTROPY, StepTotals
from arl.types import MetricValue
from tests.train.columns import comparable

pytestmark = pytest.mark.usefixtures("alone")
Token = tuple[int, float, float]  # age, a weight, and an entropy


class Measured(PPO):
    """Declares each reduction of one value."""

    metrics: ClassVar[dict[str, Statistic]] = {
        "mean": Statistic("weight", "mean"),
        "max": Statistic("weight", "max"),
        "size": Statistic("weight", "effective_sample_size"),
        "mean_by_age": Statistic("weight", "mean", by_age=True),
        "size_by_age": Statistic("weight", "effective_sample_size", by_age=True),
    }


def mean(tokens: list[Token]) -> float | None:
    return sum(w for _, w, _ in tokens) / len(tokens) if tokens else None


def size(tokens: list[Token]) -> float | None:
    return sum(w for _, w, _ in tokens) ** 2 / (len(tokens) * sum(w * w for _, w, _ in tokens)) if tokens else None


@pytest.mark.parametrize("num_parts", [1, 2, 7])
def test_every_reduction_is_its_definition_however_the_step_is_cut(num_parts: int) -> None:
    init_ranks(deadline_seconds=300)
    rng = random.Random(num_parts)
    tokens = [(rng.choice([0, 1, 2, 5, 40]), rng.uniform(0.1, 1000), rng.uniform(1, 3)) for _ in range(30)]
    step = StepTotals(torch.device("cpu"), Measured().statistics)
    for part in (*(tokens[i::num_parts] for i in range(num_parts)), []):
        ages, weights, entropies = torch.tensor(part, dtype=torch.float64).reshape(-1, 3).unbind(1)
        step.add({"weight": weights.float(), ENTROPY: entropies.float()}, ages.long())
        step.close_update(Update(torch.tensor([4.0, 0.0, 0.0, 1.0])), 0.1)
    found = step.metrics()
    ends = (*FIRST_AGES[1:], math.inf)
    buckets = [[t for t in tokens if a <= t[0] < b] for a, b in zip(FIRST_AGES, ends, strict=True)]
    definitions: dict[str, MetricValue | None] = {
        "by_age/tokens": [float(len(bucket)) for bucket in buckets],
        "mean": mean(tokens),
        "max": max(weight for _, weight, _ in tokens),
        "size": size(tokens),
        "mean_by_age": [mean(bucket) for bucket in buckets],
        "size_by_age": [size(bucket) for bucket in buckets],
        "entropy": sum(entropy for _, _, entropy in tokens) / len(tokens),
    }
    for name, expected in definitions.items():
        assert expected is not None
        assert comparable(found[name]) == pytest.approx(comparable(expected), rel=1e-5), name
