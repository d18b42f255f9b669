"""Draw accuracies against a setting that is a number, such as the staleness bound: the question of most sweeps."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from arl.report.arms import LAG, STALENESS, Arm, is_number, order, show, shown
from arl.report.differences import lines_along
from arl.report.figures import color, line_of, numbers
from arl.report.parts import Figure
from arl.report.quantities import Budget, Quantity, estimate
from arl.report.statistics import MeanOfSeeds

TITLES = {STALENESS: "staleness bound η, versions", LAG: "exact lag, versions"}
SHORT = {STALENESS: "η", LAG: "lag"}
APART = 0.07  # of the distance between two values of the axis, so that intervals do not hide each other
MARGIN = 0.06  # of the height of what is drawn


class AxisPoint(Struct, frozen=True):
    """Hold the mean of one arm, at its place on the axis."""

    place: int
    label: str
    mean: MeanOfSeeds


class AxisLine(Struct, frozen=True):
    """Hold the arms that differ along the axis alone."""

    name: str
    points: list[AxisPoint]


def axis_figures(arms: Sequence[Arm], compared: Sequence[Quantity], budgets: Sequence[Budget]) -> list[Figure]:
    """Draw each quantity at each budget, a line for each setting of what else differs; none without such an axis."""
    field = _axis(arms)
    if field is None:
        return []
    figures = []
    for quantity in compared:
        lines = [_lines(arms, field, quantity, budget) for budget in budgets]
        heights = _range([line for of_budget in lines for line in of_budget], quantity)
        for budget, of_budget in zip(budgets, lines, strict=True):
            if of_budget:
                figures.append(_figure(arms, field, quantity, budget, of_budget, heights))
    return figures


def _axis(arms: Sequence[Arm]) -> str | None:
    """Return the bound, the lag, or else the first setting that has two numbers; None if there is none."""
    fields = sorted(arms[0].settings, key=lambda field: (field != STALENESS, field != LAG))
    for field in fields:
        numbers = {arm.settings[field] for arm in arms if is_number(arm.settings[field])}
        if len(numbers) > 1:
            return field
    return None


def _values(arms: Sequence[Arm], field: str) -> list[Any]:
    """Return the values of the axis in their order."""
    values = {arm.settings[field] for arm in arms if _is_on(arm, field)}
    return sorted(values, key=lambda value: order(field, value))


def _is_on(arm: Arm, field: str) -> bool:
    """Return whether an arm has a place on the axis: no bound at all is one, unless the arm has an exact lag."""
    settings = dict(shown(arm.own_settings))
    if field not in settings:
        return False
    return is_number(settings[field]) or field == STALENESS


def _lines(arms: Sequence[Arm], field: str, quantity: Quantity, budget: Budget) -> list[AxisLine]:
    values = _values(arms, field)
    placed = [arm for arm in arms if _is_on(arm, field)]
    lines = []
    for line in lines_along(placed, [field]):
        points = []
        for arm in line:
            mean = estimate(arm, quantity, budget)
            value = arm.settings[field]
            if mean is not None:
                points.append(AxisPoint(values.index(value), show(field, value), mean))
        points.sort(key=lambda point: point.place)
        if points:
            lines.append(AxisLine(_name(line[0], field), points))
    return lines


def _name(arm: Arm, field: str) -> str:
    """Return what the arms of a line have in common."""
    settings = {other: value for other, value in arm.own_settings.items() if other != field}
    return ", ".join(arm.setting(other, value) for other, value in shown(settings)) or "all arms"


def _bounds(mean: MeanOfSeeds) -> tuple[float, float]:
    low = mean.mean if mean.low is None else mean.low
    high = mean.mean if mean.high is None else mean.high
    return low, high


def _range(lines: Sequence[AxisLine], quantity: Quantity) -> list[float]:
    """Return the heights that the figures of a quantity have in common, so that budgets can be compared."""
    bounds: list[float] = []
    for line in lines:
        for point in line.points:
            bounds += _bounds(point.mean)
    if not bounds:
        return []
    lowest = quantity.scale * min(bounds)
    highest = quantity.scale * max(bounds)
    margin = MARGIN * (highest - lowest) or MARGIN
    return [lowest - margin, highest + margin]


def _figure(
    arms: Sequence[Arm],
    field: str,
    quantity: Quantity,
    budget: Budget,
    lines: Sequence[AxisLine],
    heights: Sequence[float],
) -> Figure:
    name = arms[0].names[field]
    labels = [show(field, value) for value in _values(arms, field)]
    x_axis = {
        "title": {"text": TITLES.get(field, name)},
        "tickmode": "array",
        "tickvals": list(range(len(labels))),
        "ticktext": labels,
        "range": [-0.4, len(labels) - 0.6],
        "showgrid": False,
    }
    y_axis = {
        "title": {"text": quantity.axis_title},
        "range": list(heights),
    }
    return Figure(
        id=f"against-{name}-{quantity.key}-{budget.title}".replace(" ", "-").replace(",", ""),
        title=f"{quantity.title[0].upper()}{quantity.title[1:]} against {SHORT.get(field, name)}, {budget.title}",
        caption="Mean over seeds with its 95 % bootstrap interval. Heights are the same at every budget.",
        traces=list(_traces(lines, quantity)),
        layout={"xaxis": x_axis, "yaxis": y_axis},
    )


def _traces(lines: Sequence[AxisLine], quantity: Quantity) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines):
        paint = color(number)
        shift = APART * (number - (len(lines) - 1) / 2)
        means = quantity.scale * np.array([point.mean.mean for point in line.points])
        bounds = quantity.scale * np.array([_bounds(point.mean) for point in line.points])
        yield {
            "type": "scatter",
            "mode": "lines+markers",
            "name": line.name,
            "x": [point.place + shift for point in line.points],
            "y": numbers(means),
            "text": [point.label for point in line.points],
            "hovertemplate": "%{text}: %{y}",
            "error_y": {
                "type": "data",
                "symmetric": False,
                "array": numbers(bounds[:, 1] - means),
                "arrayminus": numbers(means - bounds[:, 0]),
                "color": paint,
                "thickness": 1.3,
                "width": 3,
            },
            "line": line_of(number),
            "marker": {"color": paint, "size": 6},
        }
