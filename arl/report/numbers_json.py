"""Write the numbers of a report as JSON, for programs that go on from there."""

from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from arl.metrics.names import AGE_BUCKETS
from arl.report.advice import advice
from arl.report.arms import Arm
from arl.report.assemble import Report
from arl.report.seed_means import last_of, metric_of, over_seeds
from arl.report.speed import mean_shares
from arl.report.speed_numbers import engine_shares, tokens_per_second, trainer_shares
from arl.report.staleness_section import DIVERGENCES, by_age
from arl.report.statistics import MeanOfSeeds


class ValueNumbers(Struct, frozen=True):
    """Hold a quantity of an arm at a budget."""

    quantity: str
    at: str
    estimate: MeanOfSeeds | None


class ArmNumbers(Struct, frozen=True, kw_only=True):
    """Hold everything that is known of an arm."""

    name: str
    settings: dict[str, Any]
    seeds: list[int]
    runs: list[str]
    steps: list[int]
    values: list[ValueNumbers]
    tokens_per_second: MeanOfSeeds | None
    trainer_time: dict[str, float]
    engine_time: dict[str, float]
    means: dict[str, MeanOfSeeds | None]  # metric -> mean over steps
    last: dict[str, MeanOfSeeds | None]  # metric -> last value: since the start of the run
    by_age: dict[str, list[float | None]]
    advice: list[str]


class DifferenceNumbers(Struct, frozen=True, kw_only=True):
    """Hold how far an arm is above another."""

    arm: str
    less: str
    quantity: str
    at: str
    estimate: MeanOfSeeds
    is_paired: bool
    sentence: str


class ReportNumbers(Struct, frozen=True, kw_only=True):
    """Hold all numbers of a report."""

    arms: list[ArmNumbers]
    differences: list[DifferenceNumbers]
    age_buckets: list[str]
    notes: list[str]


def numbers_of(report: Report) -> str:
    """Return all numbers of a report as JSON; null where nothing was measured."""
    differences = []
    for found in report.comparison.differences:
        differences.append(
            DifferenceNumbers(
                arm=found.pair.one.name,
                less=found.pair.other.name,
                quantity=found.quantity.title,
                at=found.budget.title,
                estimate=found.estimate,
                is_paired=found.is_paired,
                sentence=found.sentence,
            )
        )
    numbers = ReportNumbers(
        arms=[_arm(report, arm) for arm in report.arms],
        differences=differences,
        age_buckets=list(AGE_BUCKETS),
        notes=report.notes,
    )
    return msgspec.json.encode(numbers, enc_hook=_plain).decode()


def _plain(value: object) -> object:
    """Turn numbers of NumPy into those of Python."""
    assert isinstance(value, np.generic | np.ndarray), f"{type(value).__name__} is no number"
    return value.tolist()


def _arm(report: Report, arm: Arm) -> ArmNumbers:
    values = [
        ValueNumbers(value.quantity.title, value.budget.title, value.estimate)
        for value in report.comparison.values
        if value.arm.number == arm.number
    ]
    names = sorted({name for run in arm.runs for name in run.columns.numbers})
    since_the_start = [name for name in names if name.startswith(("audit/", "groups/"))]
    return ArmNumbers(
        name=arm.name,
        settings=arm.settings,
        seeds=arm.seeds,
        runs=[run.name for run in arm.runs],
        steps=[run.last_step for run in arm.runs],
        values=values,
        tokens_per_second=over_seeds(arm, tokens_per_second),
        trainer_time=mean_shares(arm, trainer_shares),
        engine_time=mean_shares(arm, engine_shares),
        means={name: metric_of(arm, name) for name in names if not name.startswith("audit/")},
        last={name: last_of(arm, name) for name in since_the_start},
        by_age={divergence.by_age: _ages(arm, divergence.by_age) for divergence in DIVERGENCES},
        advice=advice(arm),
    )


def _ages(arm: Arm, metric: str) -> list[float | None]:
    values: list[float] = by_age(arm, metric).tolist()
    return [None if value != value else value for value in values]
