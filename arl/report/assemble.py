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
from arl.report.arms import Arm, exact, make_arms, shortest, show
from arl.report.comparison import Comparison, compare
from arl.report.parts import Figure, Item, ReportSection, Table, arm_table, by_arm
from arl.report.quantities import LAST, Budget, Quantity, possible_budgets, unlike_fields
from arl.report.runs import LoadedRun, load_runs
from arl.report.statistics import text

TOKENS = ("trained", "rejected", "failed", "dropped", "in_flight")
MAX_NAMES = 3  # of runs, in a title
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
    drawn = [_without_empty_figures(one) for one in sections]
    counted = [run for arm in arms for run in arm.runs]
    return Report(_title(counted), _facts(arms, counted), arms, comparison, notes, drawn)


def _title(runs: Sequence[LoadedRun]) -> str:
    """Return the directory in which all runs are, or the names of the first few."""
    names = [run.name for run in runs]
    return os.path.commonpath(names) or ", ".join([*names[:MAX_NAMES], *(["…"] if len(names) > MAX_NAMES else [])])


def _facts(arms: Sequence[Arm], runs: Sequence[LoadedRun]) -> list[str]:
    """Say of what runs these are: what a figure's caption in a paper needs."""

    def of(field: str) -> list[str]:
        return [show(field, run.recipe[field]) for run in runs if run.recipe.get(field) is not None]

    known = {
        "recipe": [run.recipe_name for run in runs],
        "model": of("model.path") or ["tiny"],
        "task": [*of("data.task"), *of("data.path")],
        "commit": [run.commit for run in runs if run.commit],
        "date": [max(run.date for run in runs)],
        "arms": [str(len(arms))],
        "runs": [str(len(runs))],
    }
    return [f"{name} {', '.join(dict.fromkeys(values))}" for name, values in known.items() if values]


def _without_empty_figures(section: ReportSection) -> ReportSection:
    """Leave out figures of what no run has recorded."""

    def keep(items: Sequence[Item]) -> list[Item]:
        return [item for item in items if not isinstance(item, Figure) or item.series]

    return msgspec.structs.replace(section, items=keep(section.items), more=keep(section.more))


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
    caption = (
        "Each seed's own last measurement; accuracies in percent. Stopped: ended without a summary; "
        "`arl train RUN/recipe.yaml --resume` continues it."
    )
    rows = []
    short = shortest([run.name for arm in arms for run in arm.runs])
    for arm in arms:
        for run in arm.runs:
            lasts = [comparison.last(run, quantity) for quantity in comparison.quantities]
            rate = f"{speed.tokens_per_second(run):,.0f}"
            rows.append([short[exact(run.name)], arm.name, str(run.seed), run.status, str(run.last_step), *lasts, rate])
    titles = [quantity.title for quantity in comparison.quantities]
    runs = Table("Runs", caption, ["run", "arm", "seed", "status", "steps", *titles, "tokens/s"], rows)
    return ReportSection(id="overview", title="Arms", items=[table], more=[runs])


def _steps(arm: Arm) -> str:
    lasts = [run.last_step for run in arm.runs]
    steps = "–".join(str(step) for step in sorted({min(lasts), max(lasts)}))
    statuses = Counter(run.status for run in arm.runs if run.status != "finished")
    unfinished = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return f"{steps} ({unfinished})" if unfinished else steps


def ledger_section(arms: Sequence[Arm]) -> ReportSection:
    """Account for everything that was generated."""

    def last_of(metric: str) -> Callable[[Arm], str]:
        return lambda arm: text(arm.last(metric), ",.0f")

    table = arm_table(
        arms,
        "Sampled tokens",
        "Since the start, mean over seeds. Generated = trained + rejected + failed + dropped + in flight; unaccounted "
        "is what the sum leaves, and 0 in a sound ledger.",
        {
            "generated": last_of(GENERATED),
            **{part.replace("_", " "): last_of(f"audit/tokens_{part}") for part in TOKENS},
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
        "by_age": {metric: token_ages.by_age(arm, metric) for metric in token_ages.DIVERGENCES},
        "advice": speed.advice(arm),
    }
