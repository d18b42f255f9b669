"""Compare arms in pairs, by seed where both have it, and say in a sentence what the seeds can show."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from arl.report.arms import KIND, Arm, exact, is_number, order, show, shown
from arl.report.quantities import Budget, Quantity, value
from arl.report.statistics import MeanOfSeeds, difference_of_means, mean_of_seeds


class ArmPair(Struct, frozen=True):
    """Name two arms and what sets them apart."""

    one: Arm
    other: Arm
    differ: tuple[str, ...]  # fields

    @property
    def common(self) -> str:
        """Return what both have in common, as in ` at staleness 8 with ppo`; nothing if no setting says it."""
        if self.one.own_name:
            return ""
        kinds = []
        others = {}
        for field, setting in self.one.own_settings.items():
            if field in self.differ:
                continue
            if field.endswith(KIND):
                kinds.append(show(field, setting))
            else:
                others[field] = setting
        words = [_words(self.one, field, setting) for field, setting in shown(others)]
        at_words = f" at {', '.join(words)}" if words else ""
        with_kinds = f" with {', '.join(kinds)}" if kinds else ""
        return at_words + with_kinds


class Difference(Struct, frozen=True, kw_only=True):
    """Hold how far one arm is above another."""

    pair: ArmPair
    quantity: Quantity
    budget: Budget
    estimate: MeanOfSeeds  # of one − other
    is_paired: bool  # by seed
    is_last: bool  # the last measurement was wanted, and `budget` is where both arms have one

    @property
    def sentence(self) -> str:
        """Return the difference in words."""
        return _sentence(self)

    @property
    def is_unclear(self) -> bool:
        """Return whether several seeds show no difference. One seed alone says nothing either way."""
        return self.estimate.low is not None and self.estimate.holds_zero


def pairs(arms: Sequence[Arm]) -> list[ArmPair]:
    """Return the pairs that a reader asks for: arms that differ in one setting.

    Along a setting that is a number, each value is compared with the first one; along any other setting, each with
    each. Two arms without such a partner are compared with the first arm, whatever sets them apart.
    """
    found = list(_neighbors(arms))
    compared: set[int] = set()
    for pair in found:
        compared |= {pair.one.number, pair.other.number}
    first = arms[0]
    for arm in arms[1:]:
        if arm.number not in compared:
            found.append(_pair(arm, first))
    return found


def _neighbors(arms: Sequence[Arm]) -> Iterator[ArmPair]:
    for axis in _axes(arms[0]):
        for line in lines_along(arms, axis):
            line.sort(key=lambda arm: [order(field, arm.settings[field]) for field in axis])
            has_numbers = any(is_number(arm.settings[axis[0]]) for arm in line)
            if has_numbers:
                yield from (_pair(arm, line[0]) for arm in line[1:])
            else:
                yield from (_pair(second, first) for first, second in itertools.combinations(line, 2))


def _axes(arm: Arm) -> list[tuple[str, ...]]:
    """Return the fields in which arms differ; those of a section whose kind differs are one axis."""
    axes: dict[str, list[str]] = {}
    for field in arm.settings:
        section = field.rpartition(".")[0]
        axis = section if f"{section}{KIND}" in arm.settings else field
        axes.setdefault(axis, []).append(field)
    return [tuple(fields) for fields in axes.values()]


def lines_along(arms: Sequence[Arm], axis: Sequence[str]) -> list[list[Arm]]:
    """Group arms that differ along one axis alone."""
    lines: dict[bytes, list[Arm]] = {}
    for arm in arms:
        rest = {field: value for field, value in arm.settings.items() if field not in axis}
        lines.setdefault(exact(rest), []).append(arm)
    return list(lines.values())


def _pair(one: Arm, other: Arm) -> ArmPair:
    differ = [field for field in one.settings if one.settings[field] != other.settings[field]]
    return ArmPair(one, other, tuple(differ))


def difference(pair: ArmPair, quantity: Quantity, budget: Budget) -> Difference | None:
    """Compute how far an arm is above another; None if no seed of one of them was measured there.

    The last measurement is the last that both arms have, so that both are compared at one step. Arms are compared seed
    by seed where two seeds or more have both, or where there is no more than one to compare.
    """
    place = budget.place_in(pair.one.runs, pair.other.runs, quantity=quantity)
    if place is None:
        return None
    one = _measured(pair.one, quantity, place)
    other = _measured(pair.other, quantity, place)
    by_seed = [one[seed] - other[seed] for seed in one if seed in other]
    is_paired = len(by_seed) > 1 or (len(by_seed) == 1 and min(len(one), len(other)) == 1)
    unpaired = difference_of_means(list(one.values()), list(other.values()))
    estimate = mean_of_seeds(by_seed) if is_paired else unpaired
    if estimate is None:
        return None
    return Difference(
        pair=pair,
        quantity=quantity,
        budget=place,
        estimate=estimate,
        is_paired=is_paired,
        is_last=budget.at is None,
    )


def _measured(arm: Arm, quantity: Quantity, place: Budget) -> dict[int, float]:
    """Map the seeds of an arm to their values at a place, as far as they were measured there."""
    values = {run.seed: value(run, quantity, place) for run in arm.runs}
    return {seed: found for seed, found in values.items() if math.isfinite(found)}


def _sentence(found: Difference) -> str:
    """Write the arm that is above first. An interval that holds 0 is no difference."""
    estimate = found.estimate
    pair = found.pair
    is_above = estimate.mean >= 0
    a = _side(pair.one if is_above else pair.other, pair)
    b = _side(pair.other if is_above else pair.one, pair)
    where = f"at {found.budget.title}, {found.quantity.title}, {_seeds(found)}"
    size = _size(found.quantity, estimate, sign=1.0 if is_above else -1.0)
    common = pair.common
    if estimate.low is None and not estimate.mean:
        return f"{a} and {b}{common}: equal {where}."
    if estimate.low is None:
        return f"{a}{common} is {size} above {b} {where}: one seed has no interval, so this may be chance."
    if estimate.holds_zero:
        return f"{a} and {b}{common}: no difference that {estimate.seeds} seeds can show ({size} {where})."
    return f"{a}{common} is {size} above {b} {where}."


def _side(arm: Arm, pair: ArmPair) -> str:
    if arm.own_name:
        return arm.own_name
    settings = {field: value for field, value in arm.own_settings.items() if field in pair.differ}
    words = [_words(arm, field, value) for field, value in shown(settings)]
    return ", ".join(words)


def _words(arm: Arm, field: str, value: Any) -> str:
    """Write a setting as in a sentence: `ppo` or `staleness 8`."""
    if field.endswith(KIND) or arm.says_itself(field, value):
        return show(field, value)
    return f"{arm.names[field]} {show(field, value)}"


def _size(quantity: Quantity, estimate: MeanOfSeeds, sign: float) -> str:
    unit = " points" if quantity.is_accuracy else ""
    size = f"{quantity.text(sign * estimate.mean)}{unit}"
    if estimate.low is None or estimate.high is None:
        return size
    low, high = sorted((sign * estimate.low, sign * estimate.high))
    return f"{size} [{quantity.text(low)}, {quantity.text(high)}]"


def _seeds(found: Difference) -> str:
    count = found.estimate.seeds
    seeds = "1 seed" if count == 1 else f"{count} seeds"
    if found.is_paired:
        return seeds
    return f"{seeds} each at least, not the same ones"
