"""Show which arm learns more: against a setting that is a number, at budgets, and over steps, tokens and time."""

import math
from collections.abc import Sequence

import numpy as np

from arl.report import parts
from arl.report.arms import LAG, STALENESS, Arm, is_number, lines_along, order, show
from arl.report.comparison import Comparison
from arl.report.parts import Figure, Item, ReportSection, Series, Table
from arl.report.quantities import AXES, BEFORE, Axis, Budget, Quantity, curve
from arl.report.runs import LoadedRun
from arl.report.speed import tokens_per_second
from arl.report.statistics import text

INTERVALS = "In brackets: the 95 % bootstrap interval over seeds. With one seed there is none."
OBJECTIVE = "objective."
AXIS_TITLES = {STALENESS: "staleness bound η, versions", LAG: "exact lag, versions"}
APART = 0.07  # of the distance between two values of the axis, so that intervals do not hide each other


def section(arms: Sequence[Arm], comparison: Comparison, notes: Sequence[str]) -> ReportSection:
    """Write the section that compares arms: what decides first, everything else folded."""
    decisive = comparison.decisive
    by_bound = staleness_tables(arms, comparison)
    values = [_value_table(arms, comparison, quantity) for quantity in comparison.quantities]
    items: list[Item] = [*notes, *axis_figures(arms, comparison), *comparison.sentences, *(by_bound or values)]
    more: list[Item] = [*values] if by_bound else []
    for quantity in comparison.quantities:
        for axis in AXES:
            shown = items if axis == "steps" and quantity in decisive else more
            shown.append(_curves(arms, quantity, axis))
    if comparison.differences:
        more.append(_difference_table(comparison))
    return ReportSection(id="comparison", title="Which arm learns more?", items=items, more=more)


def _value_table(arms: Sequence[Arm], comparison: Comparison, quantity: Quantity) -> Table:
    """Write a quantity of each arm that has it, at each budget where some arm was measured."""
    measured = {budget for (one, budget, _), value in comparison.values.items() if one == quantity and value}
    budgets = [budget for budget in dict.fromkeys((BEFORE, *comparison.budgets)) if budget in measured]
    rows = []
    for arm in arms:
        cells = [comparison.cell(arm, quantity, budget) for budget in budgets]
        if any(written != "–" for written in cells):
            rows.append([arm.name, str(len(arm.runs)), *cells])
    caption = f"{INTERVALS} A dash: not measured there. ≈: on the line between two evaluations."
    header = ["arm", "seeds", *(budget.title for budget in budgets)]
    return Table(quantity.axis_title, caption, header, rows)


def _curves(arms: Sequence[Arm], quantity: Quantity, axis: Axis) -> Figure:
    def curve_of(run: LoadedRun) -> parts.SeedCurve:
        x, y = curve(run, quantity, axis)
        return x, quantity.scale * y

    title = f"{quantity.axis_title}, over {AXES[axis]}"
    whole = quantity.scale if quantity.is_accuracy else math.inf
    return parts.curves_figure(arms, curve_of, title, (AXES[axis], quantity.axis_title), whole)


def _difference_table(comparison: Comparison) -> Table:
    rows = []
    for found in comparison.differences:
        size = found.quantity.estimate(found.estimate, sign="+")
        paired = "by seed" if found.is_paired else "no"
        compared = [found.one.name, found.other.name, found.quantity.title, found.budget.title]
        rows.append([*compared, size, str(found.estimate.seeds), paired, found.doubt or "yes"])
    caption = (
        f"First arm less second arm; accuracies in points. {INTERVALS} The last measurement is the last step that both "
        "arms have."
    )
    header = ["arm", "less", "quantity", "at", "difference", "seeds", "paired", "verdict"]
    return Table("Differences between arms", caption, header, rows)


def staleness_tables(arms: Sequence[Arm], comparison: Comparison) -> list[Table]:
    """Write the paper's Table 2 (arXiv 2505.24298): a row for each bound, a column for each objective and suite.

    There is one table at each budget; none without both axes.
    """
    fields = list(arms[0].settings)
    of_objective = [field for field in fields if field.startswith(OBJECTIVE)]
    if STALENESS not in fields or not of_objective:
        return []
    others = [field for field in fields if field not in of_objective]
    by_place = {(arm.name_without(of_objective), arm.name_without(others)): arm for arm in arms}
    bounds = dict.fromkeys(bound for bound, _ in by_place)
    objectives = dict.fromkeys(objective for _, objective in by_place)
    suites = [quantity for quantity in comparison.quantities if quantity.is_accuracy] or comparison.quantities
    measures = [*(suite.name for suite in suites), "tokens/s"]
    header = ["arm", *(f"{measure} {objective}" for measure in measures for objective in objectives)]
    caption = (
        "As in Table 2 of arXiv 2505.24298. Accuracies in percent, with 95 % bootstrap intervals over seeds; trained "
        "tokens per second of the run's clock."
    )
    tables = []
    for budget in comparison.budgets:
        rows = []
        for bound in bounds:
            found = [by_place.get((bound, objective)) for objective in objectives]
            cells = [comparison.cell(arm, suite, budget) if arm else "–" for suite in suites for arm in found]
            rates = [text(arm.estimate(tokens_per_second), ",.0f") if arm else "–" for arm in found]
            rows.append([bound, *cells, *rates])
        tables.append(Table(f"Staleness and objectives, {budget.title}", caption, header, rows))
    return tables


def axis_figures(arms: Sequence[Arm], comparison: Comparison) -> list[Figure]:
    """Draw accuracies against a number, such as the bound: the question of most sweeps. None without such an axis.

    There is a figure of each quantity at each budget, and in it a line for each setting of what else differs.
    """
    field = _axis(arms)
    if field is None:
        return []
    placed = sorted((arm for arm in arms if _is_on(arm, field)), key=lambda arm: order(field, arm.settings[field]))
    labels = list(dict.fromkeys(show(field, arm.settings[field]) for arm in placed))
    name = AXIS_TITLES.get(field, arms[0].names[field])
    figures = []
    for quantity in comparison.decisive:
        for budget in comparison.budgets:
            figure = Figure(
                title=f"{quantity.axis_title}, against the {name}, {budget.title}",
                caption="Mean over seeds with its 95 % bootstrap interval.",
                x_title=name,
                y_title=quantity.axis_title,
                series=_axis_series(placed, field, comparison, (quantity, budget)),
                ticks=labels,
            )
            figures.append(figure)
    return figures


def _axis(arms: Sequence[Arm]) -> str | None:
    """Return the bound, the lag, or else the first setting that has two numbers; None if there is none."""
    for field in sorted(arms[0].settings, key=lambda field: (field != STALENESS, field != LAG)):
        if len({arm.settings[field] for arm in arms if is_number(arm.settings[field])}) > 1:
            return field
    return None


def _is_on(arm: Arm, field: str) -> bool:
    """Return whether an arm has a place on the axis: no bound at all is one, unless the arm has an exact lag."""
    settings = arm.own_settings
    return field in settings and (is_number(settings[field]) or field == STALENESS)


def _axis_series(arms: Sequence[Arm], field: str, comparison: Comparison, of: tuple[Quantity, Budget]) -> list[Series]:
    """Draw a line for each setting of what else differs; they stand a little apart."""
    labels = list(dict.fromkeys(show(field, arm.settings[field]) for arm in arms))
    measured = [arm for arm in arms if comparison.values[*of, arm.number] is not None]
    lines = sorted(lines_along(measured, [field]), key=lambda line: min(arm.number for arm in line))
    series = []
    for number, line in enumerate(lines):
        found = [comparison.values[*of, arm.number] for arm in line]
        means = [of[0].bounded(value.mean) for value in found if value]
        shift = APART * (number - (len(lines) - 1) / 2)
        x = np.array([labels.index(show(field, arm.settings[field])) + shift for arm in line])
        y, low, high = of[0].scale * np.array([(mean.mean, mean.low, mean.high) for mean in means]).T
        series.append(Series(number, line[0].name_without([field]) or "all arms", x, y, low, high))
    return series
