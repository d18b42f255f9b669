"""Define what a report is made of: sections of figures, tables and sentences.

The data side writes these parts; the page and the terminal show them. Parts hold no HTML.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from arl.report.arms import Arm
from arl.report.runs import LoadedRun
from arl.report.statistics import at_each, curve_of_seeds

TEXT_COLUMNS = ("arm", "run", "less", "quantity", "at", "paired", "status")  # every other column holds numbers
MAX_POINTS = 300  # of a curve
CURVE_CAPTION = f"Mean over seeds with its 95 % interval. Longer curves are drawn at {MAX_POINTS} even places."
# Colors that color-blind readers can distinguish, after Okabe and Ito.
RED_GREEN_BLUE = ("10,102,171", "210,86,11", "10,138,104", "178,74,140", "67,162,214", "169,127,0", "90,75,181")
DASHES = ("solid", "dash", "dot")
DIGITS = 5  # significant ones of what is drawn

SeedCurve = tuple[np.ndarray, np.ndarray]  # x and y of one seed, (n,) float each


class Figure(Struct, frozen=True):
    """Hold one plot as plotly's JSON."""

    title: str
    caption: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any] = {}


class Table(Struct, frozen=True):
    """Hold one table of texts."""

    title: str
    caption: str
    header: list[str]
    rows: list[list[str]]

    @property
    def numeric(self) -> list[bool]:
        """Return whether each column holds numbers."""
        return [name not in TEXT_COLUMNS for name in self.header]


Item = Figure | Table | str  # a text is a paragraph


class ReportSection(Struct, frozen=True, kw_only=True):
    """Answer one question of a reader."""

    id: str
    title: str
    items: list[Item]
    more: list[Item] = []  # what few readers need: the page folds it, the terminal leaves it out


def arm_table(arms: Sequence[Arm], title: str, caption: str, columns: Mapping[str, Callable[[Arm], str]]) -> Table:
    """Write a row for each arm, from a function for each column."""
    rows = [[arm.name, *(write(arm) for write in columns.values())] for arm in arms]
    return Table(title, caption, ["arm", *columns], rows)


def by_arm(arms: Sequence[Arm], lines_of: Callable[[Arm], Iterable[str]]) -> list[str]:
    """Write each line behind the arms that it is about, once for all arms of which it is true."""
    about: dict[str, list[str]] = {}
    for arm in arms:
        for line in lines_of(arm):
            about.setdefault(line, []).append(arm.name)
    written = []
    for line, names in about.items():
        subject = "all arms" if len(names) == len(arms) > 1 else "; ".join(names)
        written.append(f"{subject}: {line}")
    return written


def numbers(values: np.ndarray) -> list[float | None]:
    """Return numbers as JSON knows them, rounded; None where nothing was measured."""
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]


def color(number: int, opacity: float = 1.0) -> str:
    """Return the color of an arm or of a series."""
    return f"rgba({RED_GREEN_BLUE[number % len(RED_GREEN_BLUE)]},{opacity:g})"


def line_trace(number: int, name: str, x: list[Any], y: np.ndarray, mode: str = "lines+markers") -> dict[str, Any]:
    """Draw an arm or a series; those that share a color have unlike dashes."""
    return {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": x,
        "y": numbers(y),
        "line": {"color": color(number), "dash": DASHES[number // len(RED_GREEN_BLUE) % len(DASHES)]},
        "marker": {"color": color(number)},
    }


def axes(x_title: str, y_title: str) -> dict[str, Any]:
    """Return the layout of a figure with the titles of both axes."""
    return {"xaxis": {"title": {"text": x_title}}, "yaxis": {"title": {"text": y_title}}}


def metric_curves(arms: Sequence[Arm], metric: str, title: str, unit: str) -> Figure:
    """Draw a metric over training steps; without a trace if no run recorded it."""
    layout = axes("training steps", unit)
    return curves_figure(arms, lambda run: (run.steps.astype(float), run.number(metric)), title, layout)


def curves_figure(
    arms: Sequence[Arm], curve_of: Callable[[LoadedRun], SeedCurve], title: str, layout: dict[str, Any]
) -> Figure:
    """Draw the mean over seeds of each arm, with its interval as a band."""
    traces: list[dict[str, Any]] = []
    for arm in arms:
        curves = [curve_of(run) for run in arm.runs]
        traces += _traces(arm, [(x, y) for x, y in curves if np.isfinite(y).any()])
    return Figure(title, CURVE_CAPTION, traces, layout)


def _traces(arm: Arm, curves: Sequence[SeedCurve]) -> list[dict[str, Any]]:
    if not curves:
        return []
    x = np.unique(np.concatenate([x for x, _ in curves]))
    if len(x) > MAX_POINTS:
        x = np.linspace(x[0], x[-1], MAX_POINTS)
    mean, low, high = curve_of_seeds(np.stack([at_each(*curve, x) for curve in curves]))
    mode = "lines" if np.isfinite(mean).sum() > 1 else "markers"
    line = line_trace(arm.number, arm.name, numbers(x), mean, mode)
    known = np.isfinite(low)
    if not known.any():
        return [line]
    band = {  # an area: along the lower bounds, and back along the upper ones
        "type": "scatter",
        "mode": "lines",
        "name": arm.name,
        "showlegend": False,
        "hoverinfo": "skip",
        "x": numbers(np.concatenate([x[known], x[known][::-1]])),
        "y": numbers(np.concatenate([low[known], high[known][::-1]])),
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": color(arm.number, 0.16),
    }
    return [band, line]
