"""Show which arm learns more: against a setting that is a number, at budgets, and over steps, tokens and time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from arl.report import parts
from arl.report.arms import LAG, STALENESS, Arm, is_number, lines_along, order, show
from arl.report.comparison import Comparison
from arl.report.parts import Figure, Item, Prose, ReportSection, Table
from arl.report.quantities import AXES, Axis, Budget, Quantity, curve
from arl.report.speed import tokens_per_second
from arl.report.statistics import text

INTERVALS = "In brackets: the 95 % bootstrap interval over seeds. With one seed there is none."
OBJECTIVE = "objective."
AXIS_TITLES = {STALENESS: "staleness bound η, versions", LAG: "exact lag, versions"}
SHORT = {STALENESS: "η", LAG: "lag"}
APART = 0.07  # of the distance between two values of the axis, so that intervals do not hide each other
MARGIN = 0.06  # of the height of what is drawn


def section(arms: Sequence[Arm], comparison: Comparison, notes: Sequence[str]) -> ReportSection:
    """Write the section that compares arms: what decides first, everything else folded."""
    compared = comparison.quantities
    decisive = comparison.decisive
    by_bound = staleness_tables(arms, comparison)
    values = [_value_table(arms, comparison, quantity) for quantity in compared]
    said = [Prose(id="notes", lines=list(notes)), Prose(id="differences-said", lines=comparison.sentences)]
    notes_prose, sentences_prose = [[prose] if prose.lines else [] for prose in said]
    over_steps = [_curves(arms, quantity, "steps") for quantity in decisive]
    items: list[Item] = [
        *notes_prose,
        *axis_figures(arms, comparison),
        *sentences_prose,
        *(by_bound or values),
        *over_steps,
    ]
    more: list[Item] = [*values] if by_bound else []
    for quantity in compared:
        more += [_curves(arms, quantity, axis) for axis in AXES if axis != "steps" or quantity not in decisive]
    if comparison.differences:
        more.append(_difference_table(comparison))
    return ReportSection(id="comparison", title="Which arm learns more?", items=items, more=more)


def _value_table(arms: Sequence[Arm], comparison: Comparison, quantity: Quantity) -> Table:
    """Write a quantity of each arm that has it at each budget."""
    rows = []
    for arm in arms:
        cells = [comparison.cell(arm, quantity, budget) for budget in comparison.budgets]
        if any(written != "–" for written in cells):
            rows.append([arm.name, str(len(arm.runs)), *cells])
    unit = "Percent. " if quantity.is_accuracy else ""
    return Table(
        id=f"values-{quantity.key}",
        title=f"{quantity.heading} at budgets",
        caption=f"{unit}{INTERVALS} A dash: not measured there. ≈: on the line between two evaluations.",
        header=["arm", "seeds", *(budget.title for budget in comparison.budgets)],
        rows=rows,
    )


def _curves(arms: Sequence[Arm], quantity: Quantity, axis: Axis) -> Figure:
    curves = []
    for arm in arms:
        found = [curve(run, quantity, axis) for run in arm.runs]
        curves.append([(x, quantity.scale * y) for x, y in found])
    return parts.curves_figure(
        arms,
        curves,
        id=f"curve-{quantity.key}-{axis}",
        title=f"{quantity.heading} over {AXES[axis]}",
        caption=f"{parts.CURVE_CAPTION} Where a run ends early, the mean is of the others.",
        x_title=AXES[axis],
        y_title=quantity.axis_title,
    )


def _difference_table(comparison: Comparison) -> Table:
    rows = []
    for found in comparison.differences:
        size = found.quantity.estimate(found.estimate, sign="+")
        paired = "by seed" if found.is_paired else "no"
        compared = [found.one.name, found.other.name, found.quantity.title, found.budget.title]
        rows.append([*compared, size, str(found.estimate.seeds), paired])
    return Table(
        id="differences",
        title="Differences between arms",
        caption=f"First arm less second arm; accuracies in points. {INTERVALS} The last measurement is the last step "
        "that both arms have.",
        header=["arm", "less", "quantity", "at", "difference", "seeds", "paired"],
        rows=rows,
    )


def staleness_tables(arms: Sequence[Arm], comparison: Comparison) -> list[Table]:
    """Write the paper's Table 2 (arXiv 2505.24298): a row for each bound, a column for each objective and suite.

    There is one table at each budget and for each setting of what else differs; none without both axes.
    """
    fields = arms[0].settings
    of_objective = [field for field in fields if field.startswith(OBJECTIVE)]
    if STALENESS not in fields or not of_objective:
        return []
    groups: dict[str, list[Arm]] = {}
    for arm in arms:
        rest = [f", {arm.words(field)}" for field in arm.own_settings if field not in (STALENESS, *of_objective)]
        groups.setdefault("".join(rest), []).append(arm)
    tables = []
    for number, (rest_of_title, group) in enumerate(groups.items()):
        for budget in comparison.budgets:
            header, *rows = _grid(group, comparison, budget)
            table = Table(
                id=f"table-2-{budget.key}-{number}",
                title=f"Staleness and objectives, {budget.title}{rest_of_title}",
                caption="As in Table 2 of arXiv 2505.24298. Accuracies in percent, with 95 % bootstrap intervals over "
                "seeds; trained tokens per second of the run's clock.",
                header=header,
                rows=rows,
            )
            tables.append(table)
    return tables


def _grid(arms: Sequence[Arm], comparison: Comparison, budget: Budget) -> list[list[str]]:
    """Return the header and the rows of a table of arms by bound and objective; a dash where there is no arm."""
    suites = [quantity for quantity in comparison.quantities if quantity.is_accuracy] or comparison.quantities
    by_place: dict[tuple[str, str], Arm] = {}
    for arm in sorted(arms, key=lambda arm: order(STALENESS, arm.settings[STALENESS])):
        objective = [show(field, value) for field, value in arm.own_settings.items() if field.startswith(OBJECTIVE)]
        by_place[show(STALENESS, arm.settings[STALENESS]), ", ".join(objective)] = arm
    objectives = dict.fromkeys(objective for _, objective in by_place)
    measures = [*(suite.name for suite in suites), "tokens/s"]
    grid = [["η", *(f"{measure} {objective}" for measure in measures for objective in objectives)]]
    for bound in dict.fromkeys(bound for bound, _ in by_place):
        found = [by_place.get((bound, objective)) for objective in objectives]
        row = [bound]
        for suite in suites:
            row += [comparison.cell(arm, suite, budget) if arm else "–" for arm in found]
        row += [text(arm.estimate(tokens_per_second), ",.0f") if arm else "–" for arm in found]
        grid.append(row)
    return grid


def axis_figures(arms: Sequence[Arm], comparison: Comparison) -> list[Figure]:
    """Draw accuracies against a number, such as the bound: the question of most sweeps. None without such an axis.

    There is a figure of each quantity at each budget, and in it a line for each setting of what else differs.
    """
    field = _axis(arms)
    if field is None:
        return []
    name = arms[0].names[field]
    placed = sorted((arm for arm in arms if _is_on(arm, field)), key=lambda arm: order(field, arm.settings[field]))
    labels = list(dict.fromkeys(show(field, arm.settings[field]) for arm in placed))
    figures = []
    for quantity in comparison.decisive:
        layout = parts.axes(AXIS_TITLES.get(field, name), quantity.axis_title)
        layout["yaxis"]["range"] = _heights(placed, comparison, quantity)
        layout["xaxis"] |= {
            "tickmode": "array",
            "tickvals": list(range(len(labels))),
            "ticktext": labels,
            "range": [-0.4, len(labels) - 0.6],
            "showgrid": False,
        }
        for budget in comparison.budgets:
            figure = Figure(
                id=f"against-{name}-{quantity.key}-{budget.key}",
                title=f"{quantity.heading} against {SHORT.get(field, name)}, {budget.title}",
                caption="Mean over seeds with its 95 % bootstrap interval. Heights are the same at every budget.",
                traces=_axis_traces(placed, field, labels, comparison, quantity, budget),
                layout=layout,
            )
            figures.append(figure)
    return [figure for figure in figures if figure.traces]


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


def _heights(arms: Sequence[Arm], comparison: Comparison, quantity: Quantity) -> list[float]:
    """Return the range of heights at all budgets, so that they can be compared; empty: nothing was measured."""
    found = [comparison.values[quantity, budget, arm.number] for budget in comparison.budgets for arm in arms]
    bounds = [quantity.scale * bound for value in found if value is not None for bound in value.mean.bounds]
    if not bounds:
        return []
    margin = MARGIN * (max(bounds) - min(bounds)) or MARGIN
    return [min(bounds) - margin, max(bounds) + margin]


def _axis_traces(
    arms: Sequence[Arm],
    field: str,
    labels: Sequence[str],
    comparison: Comparison,
    quantity: Quantity,
    budget: Budget,
) -> list[dict[str, Any]]:
    """Draw a line for each setting of what else differs; they stand a little apart."""
    measured = [arm for arm in arms if comparison.values[quantity, budget, arm.number] is not None]
    lines = sorted(lines_along(measured, [field]), key=lambda line: min(arm.number for arm in line))
    traces = []
    for number, line in enumerate(lines):
        found = [comparison.values[quantity, budget, arm.number] for arm in line]
        means = quantity.scale * np.array([value.mean.mean for value in found if value])
        bounds = quantity.scale * np.array([value.mean.bounds for value in found if value])
        ticks = [show(field, arm.settings[field]) for arm in line]
        shift = APART * (number - (len(lines) - 1) / 2)
        trace = {
            "type": "scatter",
            "mode": "lines+markers",
            "name": line[0].name_without([field]) or "all arms",
            "x": [labels.index(tick) + shift for tick in ticks],
            "y": parts.numbers(means),
            "text": ticks,
            "hovertemplate": "%{text}: %{y}",
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": parts.numbers(bounds[:, 1] - means),
                "arrayminus": parts.numbers(means - bounds[:, 0]),
                "color": parts.color(number),
                "thickness": 1.3,
                "width": 3,
            },
            "line": parts.line_of(number),
            "marker": {"color": parts.color(number), "size": 6},
        }
        traces.append(trace)
    return traces
