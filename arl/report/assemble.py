"""Put a report together: read runs, group them, and answer each question in a section.

paths ─► runs ─► arms ─┬► comparison ─► learning, overview ─┐
                       └► training, speed, token_ages, ledger, advice ─┴─► Report ─► terminal, page, JSON
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from arl.metrics.names import AGE_BUCKETS
from arl.report import learning, speed, token_ages, training
from arl.report.arms import Arm, make_arms
from arl.report.comparison import Comparison, compare
from arl.report.parts import Item, ReportSection, Table, arm_table, by_arm, last_of
from arl.report.quantities import LAST, Budget, Quantity, possible_budgets, unlike_fields
from arl.report.runs import LoadedRun, load_runs
from arl.report.statistics import text

TOKENS = ("trained", "rejected", "failed", "dropped", "in_flight")
GENERATED = "audit/tokens_generated"


class Report(Struct, frozen=True):
    """Hold a whole report."""

    title: str
    facts: list[str]  # recipe, model, task, commit, date, size
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
        training.section(arms),
        speed.section(arms),
        token_ages.section(arms),
        ledger_section(arms),
        speed.advice_section(arms),
    ]
    counted = [run for arm in arms for run in arm.runs]
    title = os.path.commonpath([run.name for run in counted]) or f"{counted[0].name} and others"
    known = {name: dict.fromkeys(filter(None, (run.facts[name] for run in counted))) for name in counted[0].facts}
    facts = [f"{name} {', '.join(values)}" for name, values in known.items() if values]
    return Report(title, [*facts, f"arms {len(arms)}", f"runs {len(counted)}"], arms, comparison, notes, sections)


def overview_section(arms: Sequence[Arm], comparison: Comparison) -> ReportSection:
    """Show every arm: what it has learned, how fast, and how old its data was; and every run behind a fold."""

    def last_of(quantity: Quantity) -> Callable[[Arm], str]:
        return lambda arm: comparison.cell(arm, quantity, LAST)

    table = arm_table(
        arms,
        "Arms at their last measurement",
        "Mean over seeds, in brackets its 95 % bootstrap interval; accuracies in percent. Mean age: of trained tokens, "
        "in versions. A dash: not measured.",
        {
            "seeds": lambda arm: str(len(arm.runs)),
            "steps": _steps,
            **{quantity.title: last_of(quantity) for quantity in comparison.quantities},
            "tokens/s": lambda arm: text(arm.estimate(speed.tokens_per_second), ",.0f"),
            "mean age": lambda arm: text(arm.mean("token_age/mean"), ".2f"),
        },
    )
    caption = "Stopped: ended without a summary; `arl train RUN/recipe.yaml --resume` continues it."
    rows = []
    for arm in arms:
        for run in arm.runs:
            lasts = [quantity.last(run) for quantity in comparison.quantities]
            rows.append([run.name, arm.name, str(run.seed), run.status, str(run.last_step), *lasts])
    titles = [quantity.title for quantity in comparison.quantities]
    runs = Table("Runs", caption, ["run", "arm", "seed", "status", "steps", *titles], rows)
    return ReportSection(id="overview", title="Arms", items=[table], more=[runs])


def _steps(arm: Arm) -> str:
    lasts = [run.last_step for run in arm.runs]
    steps = "–".join(str(step) for step in sorted({min(lasts), max(lasts)}))
    statuses = Counter(run.status for run in arm.runs if run.status != "finished")
    unfinished = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return f"{steps} ({unfinished})" if unfinished else steps


def ledger_section(arms: Sequence[Arm]) -> ReportSection:
    """Account for everything that was generated."""

    table = arm_table(
        arms,
        "Sampled tokens",
        "Since the start, mean over seeds. Generated = trained + rejected + failed + dropped + in flight; unaccounted "
        "is what the sum leaves, and 0 in a sound ledger.",
        {
            "generated": last_of(GENERATED, ",.0f"),
            **{part.replace("_", " "): last_of(f"audit/tokens_{part}", ",.0f") for part in TOKENS},
            "unaccounted": lambda arm: text(arm.estimate(unaccounted), ",.0f"),
        },
    )
    items: list[Item] = [*by_arm(arms, _findings), table]
    return ReportSection(id="ledger", title="What became of what was generated?", items=items)


def unaccounted(run: LoadedRun) -> float:
    """Return generated − all that became of it, tokens, at the last step."""
    return run.last(GENERATED) - math.fsum(run.last(f"audit/tokens_{part}") for part in TOKENS)


def _findings(arm: Arm) -> Iterator[str]:
    """Say what training selects, as the run's summary found, and what the ledger lacks."""
    for run in arm.runs:
        for line in run.selection_bias:
            yield f"seed {run.seed}: trained and dropped groups: {line}."
        rest = unaccounted(run)
        if math.isfinite(rest) and rest != 0:
            yield f"seed {run.seed}: {rest:,.0f} generated tokens are not accounted for."


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
            "noise": found.noise,
            "doubt": found.doubt,
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
        "by_age": {
            metric: token_ages.by_age(arm, metric) for metric in (*token_ages.DIVERGENCES, *token_ages.RATIO_PARTS)
        },
        "advice": speed.advice(arm),
    }
