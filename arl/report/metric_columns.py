"""Turn the records of metrics.jsonl into columns of numbers. What was not recorded is NaN, never 0."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

Row = dict[str, float | list[float | None] | None]  # one line of metrics.jsonl, as read
OF_AGE_BUCKETS = "by_age/"  # begins the names of lists with one number for each age bucket


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
        found = self.numbers.get(name)
        return np.full(len(self.steps), np.nan) if found is None else found

    def table(self, name: str) -> np.ndarray:
        """Return a list metric, (steps, width) float; of width 0 if it was never recorded."""
        found = self.tables.get(name)
        return np.full((len(self.steps), 0), np.nan) if found is None else found

    def last(self, name: str) -> float:
        """Return the last number that was recorded under a name; NaN if none was."""
        values = self.number(name)
        measured = values[~np.isnan(values)]
        return float(measured[-1]) if len(measured) else float("nan")


def make_columns(rows: Sequence[Row]) -> MetricColumns:
    """Make columns of records, which are in the order of their steps."""
    numbers: dict[str, np.ndarray] = {}
    tables: dict[str, np.ndarray] = {}
    lists: dict[str, list[tuple[int, list[float | None]]]] = {}
    size = len(rows)
    for i, row in enumerate(rows):
        for name, value in row.items():
            if isinstance(value, list):
                lists.setdefault(name, []).append((i, value))
                continue
            column = numbers.get(name)
            if column is None:
                column = numbers[name] = np.full(size, np.nan)
            if value is not None:
                column[i] = value
    for name, entries in lists.items():
        tables[name] = _table(name, size, entries)
    steps = np.array([_step(row) for row in rows], dtype=np.int64)
    return MetricColumns(steps, numbers, tables)


def _step(row: Row) -> int:
    step: Any = row["step"]
    return int(step)


def _table(name: str, size: int, entries: Iterable[tuple[int, list[float | None]]]) -> np.ndarray:
    """Make one row of each list. A histogram counts 0 beyond its end; a list by age bucket says nothing there."""
    entries = list(entries)
    width = max(len(values) for _, values in entries)
    beyond = np.nan if name.startswith(OF_AGE_BUCKETS) else 0.0
    table = np.full((size, width), np.nan)
    for i, values in entries:
        table[i] = beyond
        table[i, : len(values)] = [np.nan if value is None else value for value in values]
    return table
