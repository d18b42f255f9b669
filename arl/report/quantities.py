"""Read what is compared, a reward or a suite's accuracy, over training steps, trained tokens or time.

A protocol is what decides what an accuracy or a reward means: fields of the data, the reward and the evaluation. What
was measured under unlike protocols is never put side by side: each protocol has a quantity of its own, with a letter.
"""

import math
from collections.abc import Iterable, Sequence
from string import ascii_uppercase
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct

from arl.report.arms import Arm, field_value
from arl.report.runs import LoadedRun
from arl.report.statistics import MeanOfSeeds, at_each

Axis = Literal["steps", "tokens", "seconds"]
AXES: dict[Axis, str] = {
    "steps": "training steps",
    "tokens": "trained tokens",
    "seconds": "seconds of the run's clock",
}
PLACES: dict[Axis, str] = {"steps": "step", "tokens": "tokens/trained_total", "seconds": "time_s"}
GENERATED = "reward/generated_mean"
REWARDS = {GENERATED: "generated reward", "reward/trained_mean": "trained reward"}
MIN_EVALUATIONS = 3  # of a run, for a value between them
USUAL_STEPS = (20, 30)
# Evaluations without a budget of their own have that of training.
ACCURACY_FIELDS = ("data.", "eval.", "reward.function.", "rollout.max_new_tokens.")
REWARD_FIELDS = ("data.", "reward.")
ANY_VALUE = ("eval.every", "eval.suites", "reward.workers", "reward.memory_gb", "reward.environment")

Protocol = tuple[tuple[str, bytes], ...]  # fields in which the runs of a report differ, and their values


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
    def axis_title(self) -> str:
        """Return its name at the beginning of a title or beside an axis, with the unit."""
        name = f"{self.title[0].upper()}{self.title[1:]}"
        return f"{name}, percent" if self.is_accuracy else name

    @property
    def scale(self) -> float:
        """Return by what values are multiplied where they are shown: accuracies are shown in percent."""
        return 100.0 if self.is_accuracy else 1.0

    def last(self, run: LoadedRun) -> str:
        """Write the last measurement of one run; a dash where there is none."""
        _, y = curve(run, self, "steps")
        return self.text(y[-1]) if len(y) else "–"

    def bounded(self, mean: MeanOfSeeds, least: float = 0.0) -> MeanOfSeeds:
        """Cut the interval of an accuracy where accuracies end. A mean that is outside stays in its interval."""
        if not self.is_accuracy:
            return mean
        low = max(mean.low, min(least, mean.mean))
        return MeanOfSeeds(mean.mean, low, min(mean.high, max(1.0, mean.mean)), mean.seeds)

    def text(self, value: float, sign: str = "") -> str:
        """Write a value: an accuracy in percent, anything else as it is. With "+", positive ones have a sign, too."""
        places = 1 if self.is_accuracy else 3
        rounded = round(self.scale * value, places) + 0.0  # + 0.0: no minus before a zero
        return f"{rounded:{sign}.{places}f}"

    def estimate(self, mean: MeanOfSeeds, sign: str = "", unit: str = "") -> str:
        """Write a mean with its interval, as in `41.2 [39.0, 43.1]`; of a difference with a sign or a unit."""
        mean = self.bounded(mean, -1.0 if sign or unit else 0.0)
        text = f"{self.text(mean.mean, sign)}{unit}"
        interval = f" [{self.text(mean.low, sign)}, {self.text(mean.high, sign)}]"
        return text + interval if mean.has_interval else text


class Budget(Struct, frozen=True):
    """Name a place on an axis at which values are compared."""

    axis: Axis
    at: float | None = None  # None: the last measurement

    @property
    def title(self) -> str:
        """Return how the place is called, as in `step 20`."""
        if self.at is None:
            return "last"
        if self == BEFORE:
            return "before"
        return f"step {self.at:g}" if self.axis == "steps" else f"{self.at:,.0f} {self.axis}"

    def place_in(self, arms: Sequence[Arm], quantity: Quantity) -> "Budget | None":
        """Return where arms can be compared: here, or the last step that all of them have; None: there is none.

        The last step of an arm is the last that at least half of the runs that have the quantity have reached, so that
        a run that has crashed or has just begun does not hold the others back.
        """
        if self.at is not None:
            return self
        lasts = []
        for arm in arms:
            curves = [curve(run, quantity, "steps") for run in arm.runs]
            ends = sorted(float(x[-1]) for x, _ in curves if len(x))
            if not ends:
                return None
            lasts.append(ends[len(ends) // 2])
        return Budget("steps", min(lasts))


BEFORE = Budget("steps", 0)
LAST = Budget("steps")


def possible_budgets(arms: Sequence[Arm], asked: Sequence[Budget]) -> list[Budget]:
    """Return those asked for, or else the usual ones that some run has passed; and the last measurement."""
    if asked:
        return [*dict.fromkeys(asked), LAST]
    last = max(run.last_step for arm in arms for run in arm.runs)
    return [*(Budget("steps", step) for step in USUAL_STEPS if step < last), LAST]


def quantities(arms: Sequence[Arm]) -> list[Quantity]:
    """Return every suite that some run was measured on, and the rewards that some run has recorded."""
    suites = {suite for arm in arms for run in arm.runs for suite in run.scores}
    compared = [Quantity(suite, f"accuracy on {suite}", is_accuracy=True) for suite in sorted(suites)]
    compared += [Quantity(name, title) for name, title in REWARDS.items()]
    return [one for quantity in compared for one in _by_protocol(arms, quantity)]


def _by_protocol(arms: Sequence[Arm], quantity: Quantity) -> list[Quantity]:
    """Return the quantity once for each protocol under which some run has measured it."""
    prefixes = ACCURACY_FIELDS if quantity.is_accuracy else REWARD_FIELDS
    decisive = [field for field in arms[0].differing if f"{field}.".startswith(prefixes) and field not in ANY_VALUE]
    measured = [arm for arm in arms if any(len(curve(run, quantity, "steps")[0]) for run in arm.runs)]
    protocols = dict.fromkeys(_protocol_of(arm.runs[0].recipe, decisive) for arm in measured)
    if len(protocols) == 1:
        return [quantity]
    return [
        msgspec.structs.replace(quantity, letter=letter, protocol=protocol)
        for letter, protocol in zip(ascii_uppercase, protocols, strict=False)
    ]


def _protocol_of(recipe: dict[str, Any], fields: Iterable[str]) -> Protocol:
    return tuple((field, field_value(recipe, field)) for field in fields)


def unlike_fields(compared: Iterable[Quantity]) -> list[str]:
    """Say in a sentence in which fields runs have measured unlike things; nothing if they did not."""
    fields = dict.fromkeys(field for quantity in compared for field, _ in quantity.protocol)
    if not fields:
        return []
    return [
        f"The runs differ in {', '.join(fields)}. Accuracies and rewards are compared only between runs that measured "
        "them alike; speed and staleness are compared between all."
    ]


def curve(run: LoadedRun, quantity: Quantity, axis: Axis) -> tuple[np.ndarray, np.ndarray]:
    """Return places on an axis and a quantity of one run there, (n,) float each.

    Nothing is there where the run was measured under another protocol.
    """
    x = run.number(PLACES[axis])
    if quantity.protocol != _protocol_of(run.recipe, [field for field, _ in quantity.protocol]):
        y = np.full(len(x), np.nan)
    elif quantity.is_accuracy:
        scores = run.scores.get(quantity.name, {})
        steps = np.concatenate([[0.0], run.steps])  # version 0 is at the beginning of every axis
        x = at_each(steps, np.concatenate([[0.0], x]), np.array(list(scores), dtype=float))
        y = np.array(list(scores.values()))
    else:
        y = run.number(quantity.name)
    measured = np.isfinite(x) & np.isfinite(y)
    return x[measured], y[measured]


def value(run: LoadedRun, quantity: Quantity, place: Budget) -> tuple[float, bool]:
    """Return a quantity of one run at a place, and whether it lies between two evaluations; NaN: not measured there.

    Between two measurements it is on the line between them. A line from before to after training is no measurement.
    Rewards are known at every step.
    """
    assert place.at is not None, "Budget.place_in says where the last measurement is"
    x, y = curve(run, quantity, place.axis)
    is_between = quantity.is_accuracy and place.at not in x
    if is_between and len(x) < MIN_EVALUATIONS:
        return math.nan, True
    return float(at_each(x, y, np.array([place.at]))[0]), is_between
