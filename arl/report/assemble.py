"""Put a report together: read runs, group them, and answer each question in a section.

paths ─► runs ─► arms ─┬► comparison ─► learning, overview ─┐
                       └► speed, token_ages, accounts, advice ─┴─► Report ─► terminal, page, JSON
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from arl.metrics.names import AGE_BUCKETS
from arl.report import accounts, learning, speed, token_ages
from arl.report.arms import Arm, make_arms
from arl.report.comparison import Comparison, compare
from arl.report.parts import ReportSection, Table, arm_table
from arl.report.quantities import LAST, Budget, possible_budgets, unlike_fields
from arl.report.runs import load_runs
from arl.report.statistics import text


class Report(Struct, frozen=True):
    """Hold a whole report."""

    title: str
    arms: list[Arm]
    comparison: Comparison
    notes: list[str]
    sections: list[ReportSection]


def build_report(paths: Sequence[Path], budgets: Sequence[Budget] = ()) -> Report:
    """Compare the runs that lie in `paths` or below.

    Args:
        budgets: where values are compared, beside the last measurement; none: the usual steps.

    Raises:
        InputError: there is nothing to compare.
    """
    runs, left_out = load_runs(paths)
    arms, not_counted = make_arms(runs)
    comparison = compare(arms, possible_budgets(arms, budgets))
    notes = [*left_out, *not_counted, *unlike_fields(comparison.quantities)]
    sections = [
        learning.section(arms, comparison, notes),
        overview_section(arms, comparison),
        speed.section(arms),
        token_ages.section(arms),
        accounts.section(arms),
        speed.advice_section(arms),
    ]
    num_runs = sum(len(arm.runs) for arm in arms)
    title = f"{_count(len(arms), 'arm')}, {_count(num_runs, 'run')}"
    return Report(title, arms, comparison, notes, sections)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def overview_section(arms: Sequence[Arm], comparison: Comparison) -> ReportSection:
    """Show every arm: what it has learned, how fast, and how old its data was; and every run behind a fold."""

    def last_of(kind: str) -> Callable[[Arm], str]:
        return lambda arm: _last_value(arm, kind, comparison)

    has_letters = any(quantity.letter for quantity in comparison.quantities)
    letters = " Compare only values with the same letter: each stands for a protocol." if has_letters else ""
    table = arm_table(
        arms,
        {
            "seeds": lambda arm: str(len(arm.runs)),
            "steps": _steps,
            **{quantity.kind: last_of(quantity.kind) for quantity in comparison.quantities},
            "tokens/s": lambda arm: text(arm.estimate(speed.tokens_per_second), ",.0f"),
            "mean age": lambda arm: text(arm.mean("token_age/mean"), ".2f"),
        },
        id="arms",
        title="Arms at their last measurement",
        caption="Mean over seeds, in brackets its 95 % bootstrap interval; accuracies in percent. Mean age: of trained "
        "tokens, in versions. A dash: not measured." + letters,
    )
    runs = Table(
        id="runs",
        title="Runs",
        caption="Stopped: ended without a summary; `arl train RUN/recipe.yaml --resume` continues it.",
        header=["run", "arm", "seed", "status", "steps"],
        rows=[[run.name, arm.name, str(run.seed), run.status, str(run.last_step)] for arm in arms for run in arm.runs],
    )
    return ReportSection(id="overview", title="Arms", items=[table], more=[runs])


def _last_value(arm: Arm, kind: str, comparison: Comparison) -> str:
    """Write the last value of a kind that the arm has, under any protocol."""
    for quantity in comparison.quantities:
        value = comparison.values[quantity, LAST, arm.number]
        if quantity.kind == kind and value is not None:
            return f"{quantity.estimate(value.mean)} {quantity.letter}".rstrip()
    return "–"


def _steps(arm: Arm) -> str:
    lasts = [run.last_step for run in arm.runs]
    steps = "–".join(str(step) for step in sorted({min(lasts), max(lasts)}))
    statuses = Counter(run.status for run in arm.runs if run.status != "finished")
    unfinished = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return f"{steps} ({unfinished})" if unfinished else steps


def numbers_of(report: Report) -> str:
    """Return all numbers of a report as JSON, for programs that go on from there; null where nothing was measured."""
    differences = [
        {
            "arm": found.one.name,
            "less": found.other.name,
            "quantity": found.quantity.title,
            "at": found.budget.title,
            "estimate": found.estimate,
            "is_paired": found.is_paired,
            "sentence": found.sentence,
        }
        for found in report.comparison.differences
    ]
    numbers = {
        "arms": [_numbers_of_arm(report, arm) for arm in report.arms],
        "differences": differences,
        "age_buckets": AGE_BUCKETS,
        "notes": report.notes,
    }
    return msgspec.json.encode(numbers, enc_hook=np.ndarray.tolist).decode()


def _numbers_of_arm(report: Report, arm: Arm) -> dict[str, Any]:
    values = [
        {"quantity": quantity.title, "at": budget.title, "estimate": value and value.mean}
        for (quantity, budget, number), value in report.comparison.values.items()
        if number == arm.number
    ]
    names = sorted({name for run in arm.runs for name, column in run.columns.items() if column.ndim == 1})
    return {
        "name": arm.name,
        "settings": arm.settings,
        "seeds": arm.seeds,
        "runs": [run.name for run in arm.runs],
        "steps": [run.last_step for run in arm.runs],
        "values": values,
        "tokens_per_second": arm.estimate(speed.tokens_per_second),
        "trainer_time": speed.mean_shares(arm, speed.trainer_shares),
        "engine_time": speed.mean_shares(arm, speed.engine_shares),
        "means": {name: arm.mean(name) for name in names if not name.startswith("audit/")},
        "last": {name: arm.last(name) for name in names if name.startswith(("audit/", "groups/"))},
        "by_age": {metric: token_ages.by_age(arm, metric) for metric in token_ages.DIVERGENCES},
        "advice": speed.advice(arm),
    }
