"""Sums over micro-batches give the metrics that their definitions give over all tokens at once."""

import itertools
import math
from collections.abc import Iterator
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from arl.config.objective_section import Statistic
from arl.metrics.names import FIRST_AGES
from arl.train.algorithms.objective import Objective, TokenColumns
from arl.train.sharded_model import Update
from arl.train.sharding import init_ranks
from arl.train.step_metrics import ENTROPY, StepTotals
from arl.types import MetricValue
from tests.train.columns import comparable

WIDTH = 1e-5
Token = tuple[int, float, float]  # age, a weight, and an entropy


class Measured(Objective):
    """Declares each reduction of one value."""

    scope = "token"
    normalizer = "tokens"
    columns = ()
    metrics: ClassVar[dict[str, Statistic]] = {
        "objective/mean": Statistic("weight", "mean"),
        "objective/max": Statistic("weight", "max"),
        "objective/size": Statistic("weight", "effective_sample_size"),
        "objective/mean_by_age": Statistic("weight", "mean", by_age=True),
        "objective/size_by_age": Statistic("weight", "effective_sample_size", by_age=True),
    }
    zero_advantage_is_zero_gradient = True

    def loss(self, tokens: TokenColumns) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        raise AssertionError("these tests add the numbers of tokens themselves")


@pytest.fixture(autouse=True, scope="module")
def _alone() -> Iterator[None]:
    init_ranks(deadline_seconds=300)
    yield
    dist.destroy_process_group()


def totals() -> StepTotals:
    return StepTotals(torch.device("cpu"), Measured())


def add(to: StepTotals, tokens: list[Token]) -> None:
    ages, weights, entropies = torch.tensor(tokens, dtype=torch.float64).reshape(-1, 3).unbind(1)
    to.add({"weight": weights.float(), ENTROPY: entropies.float()}, ages.long())


def update(loss: float = 1.0) -> Update:
    return Update(loss=loss, grad_norm=2.0)


def expected(tokens: list[Token]) -> dict[str, MetricValue]:
    """By the definitions."""
    ends = (*FIRST_AGES[1:], math.inf)
    buckets = [[t for t in tokens if a <= t[0] < b] for a, b in zip(FIRST_AGES, ends, strict=True)]
    return {
        "by_age/tokens": [float(len(bucket)) for bucket in buckets],
        "objective/mean": mean(tokens) or 0.0,
        "objective/max": max(weight for _, weight, _ in tokens),
        "objective/size": size(tokens) or 0.0,
        "objective/mean_by_age": [mean(bucket) for bucket in buckets],
        "objective/size_by_age": [size(bucket) for bucket in buckets],
        "entropy": sum(entropy for _, _, entropy in tokens) / len(tokens),
    }


def mean(tokens: list[Token]) -> float | None:
    return sum(w for _, w, _ in tokens) / len(tokens) if tokens else None


def size(tokens: list[Token]) -> float | None:
    if not tokens:
        return None
    return sum(w for _, w, _ in tokens) ** 2 / (len(tokens) * sum(w * w for _, w, _ in tokens))


DRAWN = st.lists(
    st.tuples(st.integers(0, 40), st.floats(0.125, 1000, width=32), st.floats(1, 3, width=32)),
    min_size=1,
    max_size=30,
)


@given(tokens=DRAWN, cuts=st.lists(st.integers(0, 30), max_size=3))
def test_every_reduction_is_its_definition_however_the_step_is_cut(tokens: list[Token], cuts: list[int]) -> None:
    step = totals()
    borders = [0, *sorted(cuts), len(tokens)]
    for start, end in itertools.pairwise(borders):
        add(step, tokens[start:end])
        step.close_update(update(), 0.1)
    found = step.metrics()
    for name, value in expected(tokens).items():
        assert comparable(found[name]) == pytest.approx(comparable(value), rel=WIDTH), name
