"""Average what the runs of an arm recorded: metrics over all steps, tables by age, curves over steps."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from arl.report.arms import Arm
from arl.report.figures import SeedCurves
from arl.report.read_runs import LoadedRun
from arl.report.statistics import MeanOfSeeds, mean_of_seeds, quotients

RunNumber = Callable[[LoadedRun], float]


def mean_of_steps(run: LoadedRun, metric: str) -> float:
    """Return the mean of a metric over the steps that recorded it; NaN if none did."""
    values = run.columns.number(metric)
    measured = values[np.isfinite(values)]
    return float(measured.mean()) if len(measured) else math.nan


def over_seeds(arm: Arm, number: RunNumber) -> MeanOfSeeds | None:
    """Return the mean of a number over the seeds of an arm; None where no run has it."""
    return mean_of_seeds([number(run) for run in arm.runs])


def metric_of(arm: Arm, metric: str) -> MeanOfSeeds | None:
    """Return the mean of a metric over steps and seeds."""
    return over_seeds(arm, lambda run: mean_of_steps(run, metric))


def last_of(arm: Arm, metric: str) -> MeanOfSeeds | None:
    """Return the mean over seeds of the last value of a metric."""
    return over_seeds(arm, lambda run: run.columns.last(metric))


def curves_of(arm: Arm, metric: str) -> SeedCurves:
    """Return a metric over steps, of each seed that recorded it."""
    curves = []
    for run in arm.runs:
        values = run.columns.number(metric)
        steps = run.columns.steps.astype(float)
        if np.isfinite(values).any():
            curves.append((steps, values))
    return SeedCurves(arm, curves)


def weighted_rows(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weighted mean of each column, (width,) float; NaN for a column without any weight.

    Args:
        values: (steps, width) float; NaN where nothing was measured.
        weights: (steps, width) float, ≥ 0.
    """
    measured = np.isfinite(values) & np.isfinite(weights)
    known_values = np.where(measured, values, 0.0)
    known_weights = np.where(measured, weights, 0.0)
    return quotients((known_weights * known_values).sum(axis=0), known_weights.sum(axis=0))


def by_arm(arms: Sequence[Arm], lines_of: Callable[[Arm], Iterable[str]]) -> list[str]:
    """Write each line behind the arms that it is about, once for all arms of which it is true."""
    about: dict[str, list[str]] = {}
    for arm in arms:
        for line in lines_of(arm):
            about.setdefault(line, []).append(arm.name)
    written = []
    for line, names in about.items():
        is_of_all = len(names) == len(arms) > 1
        whose = "all arms" if is_of_all else "; ".join(names)
        written.append(f"{whose}: {line}")
    return written


def text(estimate: MeanOfSeeds | None, form: str = ".3g") -> str:
    """Write a mean with the given format; a dash where nothing was measured."""
    return "–" if estimate is None else format(estimate.mean, form)
