"""Define what a report is made of: sections of figures, tables and sentences.

The data side writes these parts; the page and the terminal show them. Parts hold no HTML.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from arl.report.arms import Arm
from arl.report.statistics import at_each, curve_of_seeds

TEXT_COLUMNS = ("arm", "run", "less", "quantity", "at", "paired", "status")  # every other column holds numbers
MAX_POINTS = 300  # of a curve
CURVE_CAPTION = f"Mean over seeds with its 95 % interval. Longer curves are drawn at {MAX_POINTS} even places."
COLORS = (  # that color-blind readers can distinguish, after Okabe and Ito
    (10, 102, 171),
    (210, 86, 11),
    (10, 138, 104),
    (178, 74, 140),
    (67, 162, 214),
    (169, 127, 0),
    (90, 75, 181),
    (107, 116, 128),
)
DASHES = ("solid", "dash", "dot")
DIGITS = 5  # significant ones of what is drawn

SeedCurve = tuple[np.ndarray, np.ndarray]  # x and y of one seed, (n,) float each


class Figure(Struct, frozen=True, kw_only=True):
    """Hold one plot as plotly's JSON."""

    id: str
    title: str
    caption: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any] = {}


class Table(Struct, frozen=True, kw_only=True):
    """Hold one table of texts."""

    id: str
    title: str
    caption: str
    header: list[str]
    rows: list[list[str]]

    @property
    def numeric(self) -> list[bool]:
        """Return whether each column holds numbers."""
        return [name not in TEXT_COLUMNS for name in self.header]


class Prose(Struct, frozen=True, kw_only=True):
    """Hold plain sentences."""

    id: str
    lines: list[str]


Item = Figure | Table | Prose


class ReportSection(Struct, frozen=True, kw_only=True):
    """Answer one question of a reader."""

    id: str
    title: str
    items: list[Item]
    more: list[Item] = []  # what few readers need: the page folds it, the terminal leaves it out


def arm_table(
    arms: Sequence[Arm],
    columns: Mapping[str, Callable[[Arm], str]],
    *,
    id: str,
    title: str,
    caption: str,
) -> Table:
    """Write a row for each arm, from a function for each column."""
    return Table(
        id=id,
        title=title,
        caption=caption,
        header=["arm", *columns],
        rows=[[arm.name, *(write(arm) for write in columns.values())] for arm in arms],
    )


def by_arm(arms: Sequence[Arm], lines_of: Callable[[Arm], Iterable[str]]) -> list[str]:
    """Write each line behind the arms that it is about, once for all arms of which it is true."""
    about: dict[str, list[str]] = {}
    for arm in arms:
        for line in lines_of(arm):
            about.setdefault(line, []).append(arm.name)
    written = []
    for line, names in about.items():
        is_of_all = len(names) == len(arms) > 1
        subject = "all arms" if is_of_all else "; ".join(names)
        written.append(f"{subject}: {line}")
    return written


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


def axes(x_title: str, y_title: str) -> dict[str, Any]:
    """Return the layout of a figure with the titles of both axes."""
    return {"xaxis": {"title": {"text": x_title}}, "yaxis": {"title": {"text": y_title}}}


def metric_curves(arms: Sequence[Arm], metric: str, **texts: str) -> Figure:
    """Draw a metric over training steps; without a trace if no run recorded it."""
    curves = []
    for arm in arms:
        recorded = [run for run in arm.runs if np.isfinite(run.number(metric)).any()]
        curves.append([(run.steps.astype(float), run.number(metric)) for run in recorded])
    return curves_figure(arms, curves, x_title="training steps", **texts)


def curves_figure(
    arms: Sequence[Arm],
    curves: Sequence[Sequence[SeedCurve]],
    *,
    id: str,
    title: str,
    caption: str,
    x_title: str,
    y_title: str,
) -> Figure:
    """Draw the mean over seeds of each arm, with its interval as a band; `curves` are those of each arm's seeds."""
    traces: list[dict[str, Any]] = []
    for arm, of_seeds in zip(arms, curves, strict=True):
        traces += _traces(arm, of_seeds)
    return Figure(id=id, title=title, caption=caption, traces=traces, layout=axes(x_title, y_title))


def _traces(arm: Arm, curves: Sequence[SeedCurve]) -> list[dict[str, Any]]:
    measured = [(x, y) for x, y in curves if len(x)]
    if not measured:
        return []
    x = np.unique(np.concatenate([x for x, _ in measured])).astype(float)
    if len(x) > MAX_POINTS:
        x = np.linspace(x[0], x[-1], MAX_POINTS)
    mean, low, high = curve_of_seeds(np.stack([at_each(*curve, x) for curve in measured]))
    line = {
        "type": "scatter",
        "mode": "lines" if np.isfinite(mean).sum() > 1 else "markers",
        "name": arm.name,
        "x": numbers(x),
        "y": numbers(mean),
        "line": line_of(arm.number),
        "marker": {"color": color(arm.number)},
    }
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
