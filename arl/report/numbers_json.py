"""Write the numbers of a report as JSON, for programs that go on from there."""

from typing import Any

import msgspec
import numpy as np

from arl.metrics.names import AGE_BUCKETS
from arl.report.advice import advice
from arl.report.arms import Arm
from arl.report.assemble import Report
from arl.report.seed_means import last_of, metric_of, over_seeds
from arl.report.speed import mean_shares
from arl.report.speed_numbers import engine_shares, tokens_per_second, trainer_shares
from arl.report.staleness_section import DIVERGENCES, by_age


def numbers_of(report: Report) -> str:
    """Return all numbers of a report as JSON; null where nothing was measured."""
    differences = [
        {
            "arm": found.pair.one.name,
            "less": found.pair.other.name,
            "quantity": found.quantity.title,
            "at": found.budget.title,
            "estimate": found.estimate,
            "is_paired": found.is_paired,
            "sentence": found.sentence,
        }
        for found in report.comparison.differences
    ]
    numbers = {
        "arms": [_arm(report, arm) for arm in report.arms],
        "differences": differences,
        "age_buckets": AGE_BUCKETS,
        "notes": report.notes,
    }
    return msgspec.json.encode(numbers, enc_hook=_plain).decode()


def _plain(value: object) -> object:
    """Turn numbers of NumPy into those of Python."""
    assert isinstance(value, np.generic | np.ndarray), f"{type(value).__name__} is no number"
    return value.tolist()


def _arm(report: Report, arm: Arm) -> dict[str, Any]:
    values = [
        {"quantity": value.quantity.title, "at": value.budget.title, "estimate": value.estimate}
        for value in report.comparison.values
        if value.arm.number == arm.number
    ]
    names = sorted({name for run in arm.runs for name in run.columns.numbers})
    return {
        "name": arm.name,
        "settings": arm.settings,
        "seeds": arm.seeds,
        "runs": [run.name for run in arm.runs],
        "steps": [run.last_step for run in arm.runs],
        "values": values,
        "tokens_per_second": over_seeds(arm, tokens_per_second),
        "trainer_time": mean_shares(arm, trainer_shares),
        "engine_time": mean_shares(arm, engine_shares),
        "means": {name: metric_of(arm, name) for name in names if not name.startswith("audit/")},
        "last": {name: last_of(arm, name) for name in names if name.startswith(("audit/", "groups/"))},
        "by_age": {divergence.by_age: by_age(arm, divergence.by_age) for divergence in DIVERGENCES},
        "advice": advice(arm),
    }
