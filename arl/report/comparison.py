"""Compare arms: their values at budgets, and their differences in pairs, by seed where both have it, in sentences."""

import itertools
import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from arl.report.arms import KIND, Arm, is_number, lines_along, order, show
from arl.report.quantities import BEFORE, GENERATED, Budget, Quantity, quantities, value
from arl.report.statistics import MIN_SEEDS, MeanOfSeeds, Z, difference_of_means, mean_of_seeds

MAX_SENTENCES = 12


class ArmValue(Struct, frozen=True):
    """Hold the mean of a quantity over the seeds of an arm that were measured at a budget."""

    mean: MeanOfSeeds
    is_between: bool  # two evaluations, for some seed


class Difference(Struct, frozen=True, kw_only=True):
    """Hold how far one arm is above another."""

    one: Arm
    other: Arm
    quantity: Quantity
    budget: Budget
    estimate: MeanOfSeeds  # of one − other
    is_paired: bool  # by seed
    is_last: bool  # the last measurement was wanted, and `budget` is where both arms have one
    noise: float  # 95 % of differences that the sampled answers alone would make are smaller; NaN: not known

    @property
    def doubt(self) -> str:
        """Say why there is no verdict; "" if there is one."""
        if self.estimate.seeds < MIN_SEEDS:
            return f"no verdict from fewer than {MIN_SEEDS} seeds"
        if self.estimate.low <= 0 <= self.estimate.high:
            return f"no difference that {self.estimate.seeds} seeds can show"
        if self.noise > abs(self.estimate.mean):
            return f"no verdict within the evaluation's own noise of ±{self.quantity.text(self.noise)} points"
        return ""

    @property
    def sentence(self) -> str:
        """Write the difference in words, the arm that is above first, or why there is no verdict."""
        above, below, size = self.one, self.other, self.estimate
        if size.mean < 0:
            above, below, size = self.other, self.one, size.negative
        fields = [field for field in self.one.settings if self.one.settings[field] != self.other.settings[field]]
        a = _side(above, fields)
        b = _side(below, fields)
        common = _common(self.one, fields)
        seeds = "1 seed" if size.seeds == 1 else f"{size.seeds} seeds"
        pairing = "" if self.is_paired else " each at least, not the same ones"
        where = f"at {self.budget.title}, {self.quantity.title}, {seeds}{pairing}"
        written = self.quantity.estimate(size, unit=" points" if self.quantity.is_accuracy else "")
        if self.doubt:
            return f"{a} and {b}{common}: {self.doubt} ({written} {where})."
        return f"{a}{common} is {written} above {b} {where}."


def _side(arm: Arm, fields: Sequence[str]) -> str:
    """Name an arm by the fields that set it apart."""
    return arm.own_name or ", ".join(_setting(arm, field) for field in arm.own_settings if field in fields)


def _common(arm: Arm, fields: Sequence[str]) -> str:
    """Write what both arms have in common, as in ` at staleness 8 with ppo`; nothing if no setting says it."""
    common = [] if arm.own_name else [field for field in arm.own_settings if field not in fields]
    words = ", ".join(_setting(arm, field) for field in common if not field.endswith(KIND))
    kinds = ", ".join(_setting(arm, field) for field in common if field.endswith(KIND))
    return (f" at {words}" if words else "") + (f" with {kinds}" if kinds else "")


def _setting(arm: Arm, field: str) -> str:
    return show(field, arm.settings[field]) if field.endswith(KIND) else arm.words(field)


class Comparison(Struct, frozen=True):
    """Hold every value and every difference of a report."""

    quantities: list[Quantity]
    budgets: list[Budget]
    values: dict[tuple[Quantity, Budget, int], ArmValue | None]  # by the arm's number; None: not measured there
    differences: list[Difference]

    @property
    def decisive(self) -> list[Quantity]:
        """Return the suites; without any, the generated reward, or else what there is."""
        suites = [quantity for quantity in self.quantities if quantity.is_accuracy]
        generated = [quantity for quantity in self.quantities if quantity.name == GENERATED]
        return suites or generated or self.quantities

    def cell(self, arm: Arm, quantity: Quantity, budget: Budget) -> str:
        """Write a value as in a table; ≈ where it lies between two evaluations, a dash where it was not measured."""
        found = self.values[quantity, budget, arm.number]
        if found is None:
            return "–"
        text = quantity.estimate(found.mean)
        return f"≈ {text}" if found.is_between else text

    @property
    def sentences(self) -> list[str]:
        """Say what differs at the last measurement, in the quantities that decide.

        Of many pairs, only the largest differences without a doubt are said.
        """
        found = [one for one in self.differences if one.is_last and one.quantity in self.decisive]
        if len(found) <= MAX_SENTENCES:
            return [one.sentence for one in found]
        clear = [one for one in found if not one.doubt]
        largest = sorted(clear, key=lambda one: abs(one.estimate.mean), reverse=True)[:MAX_SENTENCES]
        counted = f"{len(clear)} of {len(found)} pairs show a difference. The table of differences has them all."
        return [*(one.sentence for one in largest), counted]


def compare(arms: Sequence[Arm], budgets: Sequence[Budget]) -> Comparison:
    """Compute values of every arm, and differences of every pair that a reader asks for."""
    comparison = Comparison(quantities(arms), list(budgets), {}, [])
    for quantity in comparison.quantities:
        for budget in (BEFORE, *budgets):
            for arm in arms:
                comparison.values[quantity, budget, arm.number] = _arm_value(arm, quantity, budget)
        for one, other in pairs(arms):
            for budget in budgets:
                found = difference(one, other, quantity, budget)
                if found is not None:
                    comparison.differences.append(found)
    return comparison


def _arm_value(arm: Arm, quantity: Quantity, budget: Budget) -> ArmValue | None:
    place = budget.place_in([arm], quantity)
    values = [value(run, quantity, place) for run in arm.runs] if place else []
    mean = mean_of_seeds([number for number, _ in values])
    if mean is None:
        return None
    return ArmValue(mean, any(is_between for number, is_between in values if math.isfinite(number)))


def pairs(arms: Sequence[Arm]) -> list[tuple[Arm, Arm]]:
    """Return the pairs that a reader asks for: arms that differ in one setting.

    Along a setting that is a number, each value is compared with the first one; along any other setting, each with
    each. An arm without such a partner is compared with the first arm.
    """
    found = list(_neighbors(arms))
    compared = {arm.number for pair in found for arm in pair}
    return found + [(arm, arms[0]) for arm in arms[1:] if arm.number not in compared]


def _neighbors(arms: Sequence[Arm]) -> Iterator[tuple[Arm, Arm]]:
    axes: dict[str, list[str]] = {}  # the fields of a section whose kind differs are one axis
    for field in arms[0].settings:
        section = field.rpartition(".")[0]
        has_kind = f"{section}{KIND}" in arms[0].settings
        axes.setdefault(section if has_kind else field, []).append(field)
    for fields in axes.values():
        for line in lines_along(arms, fields):
            line.sort(key=lambda arm: [order(field, arm.settings[field]) for field in fields])
            if any(is_number(arm.settings[fields[0]]) for arm in line):
                yield from ((arm, line[0]) for arm in line[1:])
            else:
                yield from ((second, first) for first, second in itertools.combinations(line, 2))


def difference(one: Arm, other: Arm, quantity: Quantity, budget: Budget) -> Difference | None:
    """Compute how far an arm is above another; None if no seed of one of them was measured there.

    The last measurement is the last that both arms have, so that both are compared at one step. Arms are compared seed
    by seed where two seeds or more have both, or where there is no more than one to compare.
    """
    place = budget.place_in([one, other], quantity)
    if place is None:
        return None
    ones = _measured(one, quantity, place)
    others = _measured(other, quantity, place)
    by_seed = [ones[seed] - others[seed] for seed in ones if seed in others]
    is_paired = len(by_seed) > 1 or (len(by_seed) == 1 and min(len(ones), len(others)) == 1)
    unpaired = difference_of_means(list(ones.values()), list(others.values()))
    estimate = mean_of_seeds(by_seed) if is_paired else unpaired
    if estimate is None:
        return None
    return Difference(
        one=one,
        other=other,
        quantity=quantity,
        budget=place,
        estimate=estimate,
        is_paired=is_paired,
        is_last=budget.at is None,
        noise=Z * math.sqrt(_variance(one, quantity, ones) + _variance(other, quantity, others)),
    )


def _variance(arm: Arm, quantity: Quantity, measured: dict[int, float]) -> float:
    """Return the binomial variance of a mean accuracy over seeds, each of few answers; NaN for other quantities.

    var = Σ p (1 − p) / n / seeds²    p: the accuracy of a seed, n: its answers, problems · eval.samples
    """
    answers = {r.seed: r.problems.get(quantity.name, math.nan) * r.recipe.get("eval.samples", 1) for r in arm.runs}
    own = [max(p * (1 - p), 0.0) / answers[seed] for seed, p in measured.items()]
    return math.fsum(own) / len(own) ** 2


def _measured(arm: Arm, quantity: Quantity, place: Budget) -> dict[int, float]:
    """Map the seeds of an arm to their values at a place, as far as they were measured there."""
    values = {run.seed: value(run, quantity, place)[0] for run in arm.runs}
    return {seed: found for seed, found in values.items() if math.isfinite(found)}
