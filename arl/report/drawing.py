"""Draw a figure as SVG: the page holds it, a browser prints it sharply, and a paper includes it.

assets/figure.svg has the marks. Here numbers become places on the drawing.
"""

import functools
import math
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
from jinja2 import Environment, Template

from arl.report.parts import Figure, Series

LEFT, RIGHT, TOP, BOTTOM = 52, 410, 28, 222  # of the plot in the drawing


@functools.cache
def template(name: str) -> Template:
    """Load a file of assets/, which escapes all text that it is given."""
    source = files("arl.report").joinpath(f"assets/{name}").read_text(encoding="utf-8")
    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)


def draw(figure: Figure) -> str:
    """Return the figure as SVG; the same figure gives the same bytes."""
    x_axis = _Axis(LEFT, RIGHT, [one.x[np.isfinite(one.y)] for one in figure.series], figure.ticks)
    y_axis = _Axis(BOTTOM, TOP, [part for one in figure.series for part in (one.y, one.low, one.high)])
    return template("figure.svg").render(figure=figure, x_axis=x_axis, y_axis=y_axis, marks=_marks)


class _Axis:
    """Place numbers between two ends of the drawing.

    Args:
        names: of the places 0, 1, …; none: the axis has numbers.
    """

    def __init__(self, start: float, end: float, values: Sequence[np.ndarray], names: Sequence[str] = ()) -> None:
        found = np.concatenate(values)
        low, high = float(np.nanmin(found)), float(np.nanmax(found))
        room = (high - low) / 25 or abs(low) / 10 or 1.0
        self._range = (-0.4, len(names) - 0.6) if names else (low - room, high + room)
        self.ends = (start, end)
        numbers = ((at, f"{at:,.12g}") for at in _round_numbers(*self._range))
        self.ticks: list[tuple[float, str]] = [*enumerate(names)] or [*numbers]

    def __call__(self, value: float) -> float:
        """Return where a number stands."""
        return round(float(np.interp(value, self._range, self.ends)), 1)

    def path(self, x: np.ndarray, y: np.ndarray, y_axis: "_Axis") -> str:
        """Return the points, as far as they were measured, as a path."""
        points = [f"{self(a)} {y_axis(b)}" for a, b in zip(x, y, strict=True) if math.isfinite(b)]
        return f"M{' L'.join(points)}"


def _round_numbers(low: float, high: float, count: int = 8) -> list[float]:
    """Return about `count` numbers of a range, which are apart by 1, 2 or 5 times a power of ten.

    >>> _round_numbers(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    least = (high - low) / count
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power > least * (1 - 1e-9))
    return [float(f"{i * step:.12g}") for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _marks(one: Series) -> list[int]:
    """Return which points show their numbers under the pointer: all, or some 30 at even distances."""
    measured = np.flatnonzero(np.isfinite(one.y))
    return list(measured[:: math.ceil(len(measured) / 30) or 1])
