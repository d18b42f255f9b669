"""Draw curves of arms over an axis, as plotly's JSON. Between two measurements of a run a curve is a straight line."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from arl.report.arms import Arm
from arl.report.parts import Figure
from arl.report.statistics import at_each, curve_of_seeds

MAX_POINTS = 300  # of a curve
SAMPLED = f"Longer curves are drawn at {MAX_POINTS} even places."
COLORS = (  # that color-blind readers tell apart, after Okabe and Ito
    *((10, 102, 171), (210, 86, 11), (10, 138, 104), (178, 74, 140)),
    *((67, 162, 214), (169, 127, 0), (90, 75, 181), (107, 116, 128)),
)
DASHES = ("solid", "dash", "dot")
DIGITS = 5  # significant ones of what is drawn


class SeedCurves(Struct, frozen=True):
    """Hold the curves of an arm's seeds: x and y of each, (n,) float."""

    arm: Arm
    curves: list[tuple[np.ndarray, np.ndarray]]


def numbers(values: np.ndarray) -> list[float | None]:
    """Return numbers as JSON knows them, rounded; None where nothing was measured."""
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]


def color(number: int, opacity: float = 1.0) -> str:
    """Return the color of an arm or of a series."""
    red, green, blue = COLORS[number % len(COLORS)]
    return f"rgba({red}, {green}, {blue}, {opacity:g})"


def line_of(number: int) -> dict[str, Any]:
    """Return the line of an arm or of a series; those that share a color have unlike dashes."""
    return {"color": color(number), "dash": DASHES[number // len(COLORS) % len(DASHES)]}


def curves_figure(
    name: str, title: str, caption: str, arms: Sequence[SeedCurves], x_title: str, y_title: str
) -> Figure:
    """Draw the mean over seeds of each arm, with its interval as a band."""
    traces: list[dict[str, Any]] = []
    for seeds in arms:
        traces += _traces(seeds)
    return Figure(id=name, title=title, caption=caption, traces=traces, layout=layout(x_title, y_title))


def layout(x_title: str, y_title: str) -> dict[str, Any]:
    """Return the titles of both axes."""
    return {"xaxis": {"title": {"text": x_title}}, "yaxis": {"title": {"text": y_title}}}


def _traces(seeds: SeedCurves) -> list[dict[str, Any]]:
    x, values = common_grid(seeds.curves)
    if not len(x):
        return []
    mean, low, high = curve_of_seeds(values)
    arm = seeds.arm
    line: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "name": arm.name,
        "x": numbers(x),
        "y": numbers(mean),
        "line": line_of(arm.number),
    }
    if np.isfinite(mean).sum() == 1:
        line["mode"] = "markers"
        line["marker"] = {"color": color(arm.number)}
    has_interval = np.isfinite(low)
    if not has_interval.any():
        return [line]
    band = _band(arm, x[has_interval], low[has_interval], high[has_interval])
    return [band, line]


def _band(arm: Arm, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
    """Draw an interval as an area: along the lower bounds, and back along the upper ones."""
    there_and_back = np.concatenate([x, x[::-1]])
    edge = np.concatenate([low, high[::-1]])
    return {
        "type": "scatter",
        "mode": "lines",
        "name": arm.name,
        "showlegend": False,
        "hoverinfo": "skip",
        "x": numbers(there_and_back),
        "y": numbers(edge),
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": color(arm.number, 0.16),
    }


def common_grid(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Bring the curves of several seeds to common places.

    Returns:
        x, (points,) float, and values, (seeds, points) float: NaN outside of what a seed has measured.
    """
    measured = [(x, y) for x, y in curves if len(x)]
    if not measured:
        return np.empty(0), np.empty((0, 0))
    grid = np.unique(np.concatenate([x for x, _ in measured])).astype(float)
    if len(grid) > MAX_POINTS:
        grid = np.linspace(grid[0], grid[-1], MAX_POINTS)
    return grid, np.stack([at_each(x, y, grid) for x, y in measured])
