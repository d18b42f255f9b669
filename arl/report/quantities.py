"""Read what is compared, a reward or a suite's accuracy, over training steps, trained tokens or time."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from arl.report.arms import Arm
from arl.report.read_runs import LoadedRun
from arl.report.statistics import MeanOfSeeds, at, at_each, mean_of_seeds

Axis = Literal["steps", "tokens", "seconds"]
AXES: dict[Axis, str] = {
    "steps": "training steps",
    "tokens": "trained tokens",
    "seconds": "seconds of the run's clock",
}
GENERATED = "reward/generated_mean"
TRAINED = "reward/trained_mean"


class Quantity(Struct, frozen=True):
    """Name something that is compared between arms."""

    name: str  # of the metric; of an accuracy, of the suite
    title: str
    is_accuracy: bool = False

    @property
    def key(self) -> str:
        """Return a name that may stand in an id."""
        return self.title.replace(" ", "-").replace("/", "-").replace(":", "-")

    def text(self, value: float, signed: bool = False) -> str:
        """Write a value: an accuracy in percent, anything else as it is."""
        sign = "+" if signed else ""
        return f"{100 * value:{sign}.1f}" if self.is_accuracy else f"{value:{sign}.3f}"

    def estimate(self, estimate: MeanOfSeeds | None, signed: bool = False) -> str:
        """Write a mean with its interval, as in `41.2 [39.0, 43.1]`; a dash where nothing was measured."""
        if estimate is None:
            return "–"
        mean = self.text(estimate.mean, signed)
        if estimate.low is None or estimate.high is None:
            return mean
        return f"{mean} [{self.text(estimate.low, signed)}, {self.text(estimate.high, signed)}]"


class Budget(Struct, frozen=True):
    """Name a place on an axis at which values are compared."""

    axis: Axis
    at: float | None = None  # None: the last measurement

    @property
    def title(self) -> str:
        """Return how the place is called, as in `step 20`."""
        if self.at is None:
            return "last"
        if self.axis == "steps":
            return f"step {self.at:g}"
        return f"{self.at:,.0f} {self.axis}"


LAST = Budget("steps")
USUAL = (Budget("steps", 20), Budget("steps", 30))


class Curve(Struct, frozen=True):
    """Hold a quantity of one run over an axis: (n,) floats each, x increasing."""

    x: np.ndarray
    y: np.ndarray


def quantities(arms: Sequence[Arm]) -> list[Quantity]:
    """Return every suite that some run was measured on, and the rewards that some run has recorded."""
    runs = [run for arm in arms for run in arm.runs]
    suites = sorted({suite for run in runs for suite in run.scores})
    found = [Quantity(suite, f"accuracy on {suite}", is_accuracy=True) for suite in suites]
    for name, title in ((GENERATED, "generated reward"), (TRAINED, "trained reward")):
        if any(name in run.columns.numbers for run in runs):
            found.append(Quantity(name, title))
    return found


def curve(run: LoadedRun, quantity: Quantity, axis: Axis) -> Curve:
    """Return a quantity of one run over an axis, where it was measured."""
    if quantity.is_accuracy:
        scores = run.scores.get(quantity.name)
        if scores is None:
            return Curve(np.empty(0), np.empty(0))
        x = _at_versions(run, scores.steps.astype(float), axis)
        y = scores.accuracy
    else:
        x = places(run, axis)
        y = run.columns.number(quantity.name)
    measured = np.isfinite(x) & np.isfinite(y)
    return Curve(x[measured], y[measured])


def places(run: LoadedRun, axis: Axis) -> np.ndarray:
    """Return where each step of a run ends on an axis, (steps,) float; NaN where that was not recorded."""
    columns = run.columns
    if axis == "steps":
        return columns.steps.astype(float)
    if axis == "seconds":
        return columns.number("time_s")
    if "tokens/trained_total" in columns.numbers:
        return columns.number("tokens/trained_total")
    is_whole = bool((columns.steps == np.arange(1, len(columns.steps) + 1)).all())
    total: np.ndarray = np.cumsum(columns.number("tokens/trained"))
    return total if is_whole else np.full(len(columns.steps), np.nan)


def _at_versions(run: LoadedRun, versions: np.ndarray, axis: Axis) -> np.ndarray:
    """Return where policy versions were made on an axis; version 0 is at its beginning."""
    if axis == "steps":
        return versions
    steps = np.concatenate([[0.0], run.columns.steps])
    return at_each(steps, np.concatenate([[0.0], places(run, axis)]), versions)


def value(run: LoadedRun, quantity: Quantity, budget: Budget) -> float:
    """Return a quantity of one run at a budget; NaN where it was not measured. Between measurements it is a line."""
    found = curve(run, quantity, budget.axis)
    if budget.at is None:
        return float(found.y[-1]) if len(found.y) else math.nan
    return at(found.x, found.y, budget.at)


def estimate(arm: Arm, quantity: Quantity, budget: Budget) -> MeanOfSeeds | None:
    """Return the mean of a quantity over the seeds of an arm."""
    return mean_of_seeds([value(run, quantity, budget) for run in arm.runs])


def possible_budgets(arms: Sequence[Arm], asked: Sequence[Budget]) -> list[Budget]:
    """Return those asked for, or else the usual ones that some run has passed; and the last measurement."""
    if asked:
        return [*asked, LAST]
    last = max(run.last_step for arm in arms for run in arm.runs)
    return [*(budget for budget in USUAL if budget.at is not None and budget.at < last), LAST]


def last_common(runs: Iterable[LoadedRun], quantity: Quantity) -> Budget | None:
    """Return the last step at which a quantity of every one of the runs is known; None if there is none."""
    curves = [curve(run, quantity, "steps") for run in runs]
    if not curves or not all(len(found.x) for found in curves):
        return None
    return Budget("steps", min(float(found.x[-1]) for found in curves))
