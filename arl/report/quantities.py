"""Read what is compared, a reward or a suite's accuracy, over training steps, trained tokens or time."""

import math
import re
from collections.abc import Iterable, Sequence
from string import ascii_uppercase
from typing import Literal

import msgspec
import numpy as np
from msgspec import Struct

from arl.report.arms import Arm
from arl.report.protocols import Protocol, deciding_fields, protocol_of
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

LEAST_EVALUATIONS = 3  # of a run, for a value between them


class Quantity(Struct, frozen=True):
    """Name something that is compared between arms."""

    name: str  # of the metric; of an accuracy, of the suite
    kind: str  # of what it is, as in `accuracy on held_out`
    letter: str = ""  # of its protocol, where a report has several
    is_accuracy: bool = False
    protocol: Protocol = ()  # of the runs that have it; runs of another protocol have another quantity

    @property
    def title(self) -> str:
        """Return its name in texts."""
        return f"{self.kind} (protocol {self.letter})" if self.letter else self.kind

    @property
    def key(self) -> str:
        """Return a name that may stand in an id."""
        return re.sub(r"[^A-Za-z0-9_]+", "-", self.title).strip("-")

    @property
    def scale(self) -> float:
        """Return by what values are multiplied where they are shown: accuracies are shown in percent."""
        return 100.0 if self.is_accuracy else 1.0

    @property
    def axis_title(self) -> str:
        """Return its name beside an axis, with the unit."""
        return f"{self.title}, percent" if self.is_accuracy else self.title

    def text(self, value: float, signed: bool = False) -> str:
        """Write a value: an accuracy in percent, anything else as it is."""
        places = 1 if self.is_accuracy else 3
        rounded = round(self.scale * value, places) + 0.0  # + 0.0: no minus before a zero
        sign = "+" if signed else ""
        return f"{rounded:{sign}.{places}f}"

    def estimate(self, estimate: MeanOfSeeds | None, signed: bool = False) -> str:
        """Write a mean with its interval, as in `41.2 [39.0, 43.1]`; a dash where nothing was measured."""
        if estimate is None:
            return "–"
        mean = self.text(estimate.mean, signed)
        if estimate.low is None or estimate.high is None:
            return mean
        low = self.text(estimate.low, signed)
        high = self.text(estimate.high, signed)
        return f"{mean} [{low}, {high}]"


class Budget(Struct, frozen=True):
    """Name a place on an axis at which values are compared."""

    axis: Axis
    at: float | None = None  # None: the last measurement

    def place_in(self, *arms: Sequence[LoadedRun], quantity: Quantity) -> "Budget | None":
        """Return where arms can be compared: here, or the last step that all of them have; None: there is none."""
        if self.at is not None:
            return self
        lasts = [last_step(runs, quantity) for runs in arms]
        if not all(map(math.isfinite, lasts)):
            return None
        return Budget("steps", min(lasts))

    @property
    def title(self) -> str:
        """Return how the place is called, as in `step 20`."""
        if self.at is None:
            return "last"
        if self.axis == "steps":
            return f"step {self.at:g}"
        return f"{self.at:,.0f} {self.axis}"


LAST = Budget("steps")
USUAL_STEPS = (20, 30)


class Curve(Struct, frozen=True):
    """Hold a quantity of one run over an axis: (n,) floats each, x increasing."""

    x: np.ndarray
    y: np.ndarray


NO_CURVE = Curve(np.empty(0), np.empty(0))


def quantities(arms: Sequence[Arm]) -> list[Quantity]:
    """Return every suite that some run was measured on, and the rewards that some run has recorded.

    What was measured under unlike protocols is never put side by side: each protocol has a quantity of its own.
    """
    suites: set[str] = set()
    for arm in arms:
        for run in arm.runs:
            suites |= run.scores.keys()
    found: list[Quantity] = []
    for suite in sorted(suites):
        accuracy = Quantity(suite, f"accuracy on {suite}", is_accuracy=True)
        found += _by_protocol(arms, accuracy)
    for name, title in ((GENERATED, "generated reward"), (TRAINED, "trained reward")):
        found += _by_protocol(arms, Quantity(name, title))
    return found


def _by_protocol(arms: Sequence[Arm], quantity: Quantity) -> list[Quantity]:
    """Return the quantity once for each protocol under which some run has measured it."""
    fields = deciding_fields(arms[0].differing, quantity.is_accuracy)
    protocols: dict[Protocol, None] = {}  # in the order of arms
    for arm in arms:
        if any(_has(run, quantity) for run in arm.runs):
            protocol = protocol_of(arm.runs[0], fields)
            protocols[protocol] = None
    if len(protocols) == 1:
        return [quantity]
    found = []
    for number, protocol in enumerate(protocols):
        lettered = msgspec.structs.replace(quantity, letter=_letter(number), protocol=protocol)
        found.append(lettered)
    return found


def _letter(number: int) -> str:
    """Return A, B, …, Z, A1, B1, …"""
    round_, place = divmod(number, len(ascii_uppercase))
    return f"{ascii_uppercase[place]}{round_ or ''}"


def _has(run: LoadedRun, quantity: Quantity) -> bool:
    if quantity.is_accuracy:
        return quantity.name in run.scores
    return quantity.name in run.columns.numbers


def curve(run: LoadedRun, quantity: Quantity, axis: Axis) -> Curve:
    """Return a quantity of one run over an axis, where it was measured under the quantity's protocol."""
    fields = [field for field, _ in quantity.protocol]
    if quantity.protocol != protocol_of(run, fields):
        return NO_CURVE
    if quantity.is_accuracy:
        scores = run.scores.get(quantity.name)
        if scores is None:
            return NO_CURVE
        x = _at_versions(run, scores.steps.astype(float), axis)
        y = scores.accuracy
    else:
        x = places(run, axis)
        y = run.columns.number(quantity.name)
    measured = np.isfinite(x) & np.isfinite(y)
    return Curve(x[measured], y[measured])


def places(run: LoadedRun, axis: Axis) -> np.ndarray:
    """Return where each step of a run ends on an axis, (steps,) float; NaN where that was not recorded."""
    if axis == "steps":
        return run.columns.steps.astype(float)
    return run.columns.number("time_s" if axis == "seconds" else "tokens/trained_total")


def _at_versions(run: LoadedRun, versions: np.ndarray, axis: Axis) -> np.ndarray:
    """Return where policy versions were made on an axis; version 0 is at its beginning."""
    if axis == "steps":
        return versions
    steps = np.concatenate([[0.0], run.columns.steps])
    ends = np.concatenate([[0.0], places(run, axis)])
    return at_each(steps, ends, versions)


def value(run: LoadedRun, quantity: Quantity, budget: Budget) -> float:
    """Return a quantity of one run at a budget; NaN where it was not measured.

    Between two measurements it is on the line between them. A line from before to after training is no measurement.
    """
    assert budget.at is not None, "Budget.place_in says where the last measurement is"
    found = curve(run, quantity, budget.axis)
    if _is_between(found, quantity, budget) and len(found.x) < LEAST_EVALUATIONS:
        return math.nan
    return at(found.x, found.y, budget.at)


def _is_between(found: Curve, quantity: Quantity, budget: Budget) -> bool:
    """Return whether an accuracy is wanted where there was no evaluation. Rewards are known at every step."""
    return quantity.is_accuracy and budget.at not in found.x


def cell(arm: Arm, quantity: Quantity, budget: Budget) -> str:
    """Write a quantity of an arm at a budget as in a table; ≈ where it lies between two evaluations."""
    found = estimate(arm, quantity, budget)
    text = quantity.estimate(found)
    place = budget.place_in(arm.runs, quantity=quantity)
    if found is None or place is None:
        return text
    measured = [run for run in arm.runs if math.isfinite(value(run, quantity, place))]
    curves = [curve(run, quantity, place.axis) for run in measured]
    is_between = any(_is_between(one, quantity, place) for one in curves)
    return f"≈ {text}" if is_between else text


def estimate(arm: Arm, quantity: Quantity, budget: Budget) -> MeanOfSeeds | None:
    """Return the mean of a quantity over the seeds of an arm that were measured there; None if none was."""
    place = budget.place_in(arm.runs, quantity=quantity)
    if place is None:
        return None
    return mean_of_seeds([value(run, quantity, place) for run in arm.runs])


def possible_budgets(arms: Sequence[Arm], asked: Sequence[Budget]) -> list[Budget]:
    """Return those asked for, or else the usual ones that some run has passed; and the last measurement."""
    if asked:
        return [*dict.fromkeys(asked), LAST]
    last = max(run.last_step for arm in arms for run in arm.runs)
    passed = [Budget("steps", step) for step in USUAL_STEPS if step < last]
    return [*passed, LAST]


def last_step(runs: Iterable[LoadedRun], quantity: Quantity) -> float:
    """Return the last step at which at least half of the runs that have a quantity have it; NaN: none has it.

    So a run that has crashed or has just begun does not hold the others back.
    """
    curves = [curve(run, quantity, "steps") for run in runs]
    ends = sorted(float(found.x[-1]) for found in curves if len(found.x))
    if not ends:
        return math.nan
    return ends[len(ends) // 2]
