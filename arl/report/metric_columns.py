"""Turn the records of metrics.jsonl into columns of numbers. What was not recorded is NaN, never 0."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from arl.metrics.names import BY_AGE
from arl.metrics.record_file import Row, Value, step_of


class MetricColumns(Struct, frozen=True):
    """Hold the records of a run's steps, one row a step, in the order of steps.

    Example: `columns.number("loss")` is (steps,) float; `columns.table("token_age/histogram")` is (steps, ages) float.
    """

    steps: np.ndarray  # (steps,) int
    numbers: dict[str, np.ndarray]
    tables: dict[str, np.ndarray]

    @property
    def names(self) -> set[str]:
        """Return the names of everything that was recorded at least once."""
        return {*self.numbers, *self.tables}

    def number(self, name: str) -> np.ndarray:
        """Return a metric, (steps,) float; all NaN if it was never recorded."""
        if name in self.numbers:
            return self.numbers[name]
        return np.full(len(self.steps), np.nan)

    def table(self, name: str) -> np.ndarray:
        """Return a list metric, (steps, width) float; of width 0 if it was never recorded."""
        if name in self.tables:
            return self.tables[name]
        return np.empty((len(self.steps), 0))

    def last(self, name: str) -> float:
        """Return the last number that was recorded under a name; NaN if none was."""
        values = self.number(name)
        measured = values[~np.isnan(values)]
        if not len(measured):
            return math.nan
        return float(measured[-1])


def make_columns(rows: Sequence[Row]) -> MetricColumns:
    """Make columns of records, which are in the order of their steps."""
    numbers: dict[str, np.ndarray] = {}
    tables: dict[str, np.ndarray] = {}
    names = dict.fromkeys(itertools.chain.from_iterable(rows))
    for name in names:
        values = [row.get(name) for row in rows]
        if any(type(value) is list for value in values):
            tables[name] = _table(name, values)
        else:
            numbers[name] = np.array(values, dtype=np.float64)  # None becomes NaN
    steps = np.array([step_of(row) for row in rows], dtype=np.int64)
    return MetricColumns(steps, numbers, tables)


def _table(name: str, values: Sequence[Value]) -> np.ndarray:
    """Make one row of each list. A histogram counts 0 beyond its end; a list by age bucket says nothing there."""
    lists = [value if isinstance(value, list) else None for value in values]
    widths = [len(entries) for entries in lists if entries is not None]
    beyond = math.nan if name.startswith(BY_AGE) else 0.0
    table = np.full((len(values), max(widths)), beyond)
    for row, entries in zip(table, lists, strict=True):
        if entries is None:
            row[:] = math.nan
        else:
            row[: len(entries)] = entries
    return table
