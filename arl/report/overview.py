"""Show all arms in one table, and all runs in another."""

from collections import Counter
from collections.abc import Sequence

from arl.report.arms import Arm
from arl.report.comparison import Comparison
from arl.report.parts import Item, ReportSection, Table
from arl.report.quantities import LAST
from arl.report.seed_means import metric_of, over_seeds, text
from arl.report.speed_numbers import tokens_per_second


def overview_section(comparison: Comparison) -> ReportSection:
    """Write the section that shows every arm, and every run behind a fold."""
    items: list[Item] = [arm_table(comparison)]
    return ReportSection(id="overview", title="Arms", items=items, more=[_run_table(comparison.arms)])


def arm_table(comparison: Comparison) -> Table:
    """Write one row for each arm: what it has learned, how fast, and how old its data was."""
    kinds = list(dict.fromkeys(quantity.kind for quantity in comparison.quantities))
    rows = []
    for arm in comparison.arms:
        values = [_value(comparison, arm, kind) for kind in kinds]
        rate = text(over_seeds(arm, tokens_per_second), ",.0f")
        age = text(metric_of(arm, "token_age/mean"), ".2f")
        rows.append([arm.name, str(len(arm.runs)), _steps(arm), *values, rate, age])
    has_letters = any(quantity.letter for quantity in comparison.quantities)
    letters = " Compare only values with the same letter: each stands for a protocol." if has_letters else ""
    return Table(
        id="arms",
        title="Arms at their last measurement",
        caption="Mean over seeds, in brackets its 95 % bootstrap interval; accuracies in percent. Mean age: of trained "
        "tokens, in versions. A dash: not measured." + letters,
        header=["arm", "seeds", "steps", *kinds, "tokens/s", "mean age"],
        rows=rows,
        numeric=[False, *[True] * (len(kinds) + 4)],
    )


def _value(comparison: Comparison, arm: Arm, kind: str) -> str:
    """Write the last value of a kind that the arm has, under whatever protocol."""
    for quantity in comparison.quantities:
        estimate = comparison.of(arm, quantity, LAST)
        if quantity.kind == kind and estimate is not None:
            letter = f" {quantity.letter}" if quantity.letter else ""
            return f"{quantity.estimate(estimate)}{letter}"
    return "–"


def _steps(arm: Arm) -> str:
    fewest = min(run.last_step for run in arm.runs)
    most = max(run.last_step for run in arm.runs)
    steps = str(most) if fewest == most else f"{fewest}–{most}"
    statuses = Counter(run.status for run in arm.runs if run.status != "finished")
    unfinished = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return f"{steps} ({unfinished})" if unfinished else steps


def _run_table(arms: Sequence[Arm]) -> Table:
    rows = []
    for arm in arms:
        for run in arm.runs:
            rows.append([run.name, arm.name, str(run.seed), run.status, str(run.last_step)])
    return Table(
        id="runs",
        title="Runs",
        caption="Stopped: ended without a summary; `arl train RUN/recipe.yaml --resume` continues it.",
        header=["run", "arm", "seed", "status", "steps"],
        rows=rows,
        numeric=[False, False, True, False, True],
    )
