"""Define what a report is made of: sections of figures, tables and sentences.

The data side writes these parts; the page and the terminal show them. Parts hold no HTML.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from msgspec import Struct, structs

from arl.metrics.names import METRICS
from arl.report.arms import Arm
from arl.report.runs import LoadedRun
from arl.report.statistics import MIN_SEEDS, at_each, curve_of_seeds, text

# Columns of text; every other column holds numbers.
TEXT_COLUMNS = frozenset({"arm", "run", "less", "quantity", "at", "paired", "verdict", "status"})
MAX_POINTS = 300  # of a curve
CURVES = (
    "Curves: mean over seeds. Thin lines: single seeds. Shaded: the 95 % bootstrap interval, from three seeds on. "
    f"Longer curves are drawn at {MAX_POINTS} even places."
)

SeedCurve = tuple[np.ndarray, np.ndarray]  # x and y of one seed, (n,) float each


class Series(Struct, frozen=True):
    """Hold one line of a figure."""

    number: int  # of its arm, which is its color
    name: str  # "" for one seed of an arm, which is drawn thin
    x: np.ndarray  # (n,) float
    y: np.ndarray  # (n,) float; NaN where nothing was measured
    low: np.ndarray  # (n,) float; NaN where there is no interval
    high: np.ndarray

    @property
    def has_interval(self) -> bool:
        """Return whether it has one anywhere."""
        return bool(np.isfinite(self.low).any())


class Figure(Struct, frozen=True, kw_only=True):
    """Hold one plot. A figure without series has nothing to show, and is left out."""

    title: str
    caption: str = ""
    x_title: str
    y_title: str
    series: list[Series]
    ticks: list[str] = []  # names of the places 0, 1, … on the x-axis; none: it has numbers


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


def last_of(metric: str, form: str = ".3g") -> Callable[[Arm], str]:
    """Return what writes the last value of a metric: a column of a table."""
    return lambda arm: text(arm.last(metric), form)


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


def line(number: int, name: str, x: np.ndarray, y: np.ndarray) -> Series:
    """Make a series without intervals."""
    none = np.full(len(y), np.nan)
    return Series(number, name, x, y, none, none)


def metric_curves(arms: Sequence[Arm], metric: str, title: str, unit: str) -> Figure:
    """Draw a metric over training steps, with its definition; without a series if no run recorded it."""
    formula = METRICS.get(metric, "")
    whole = 1.0 if formula.endswith("[fraction]") else math.inf
    axes = ("training steps", unit)
    figure = curves_figure(arms, lambda run: (run.steps.astype(float), run.number(metric)), title, axes, whole)
    return structs.replace(figure, caption=formula)


def curves_figure(
    arms: Sequence[Arm],
    curve_of: Callable[[LoadedRun], SeedCurve],
    title: str,
    axes: tuple[str, str],
    whole: float = math.inf,
) -> Figure:
    """Draw the mean over seeds of each arm, with its interval as a band, and each seed as a thin line.

    Args:
        axes: titles of the x-axis and of the y-axis.
        whole: of which the quantity is a share, so that it is never below 0 or above this; ∞: it is none.
    """
    series: list[Series] = []
    for arm in arms:
        curves = [curve_of(run) for run in arm.runs]
        series += _series(arm, [(x, y) for x, y in curves if np.isfinite(y).any()], whole)
    return Figure(title=title, x_title=axes[0], y_title=axes[1], series=series)


def _series(arm: Arm, curves: Sequence[SeedCurve], whole: float) -> list[Series]:
    if not curves:
        return []
    x = np.unique(np.concatenate([x for x, _ in curves]))
    if len(x) > MAX_POINTS:
        x = np.linspace(x[0], x[-1], MAX_POINTS)
    seeds = np.stack([at_each(*curve, x) for curve in curves])
    mean, *bounds = curve_of_seeds(seeds)
    is_enough = np.isfinite(seeds).sum(axis=0) >= MIN_SEEDS
    least = 0.0 if math.isfinite(whole) else -math.inf
    low, high = (np.where(is_enough, np.clip(bound, least, whole), np.nan) for bound in bounds)
    thin = [line(arm.number, "", x, seed) for seed in seeds] if len(seeds) > 1 else []
    return [*thin, Series(arm.number, arm.name, x, mean, low, high)]
