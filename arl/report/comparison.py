"""Compare arms: rewards and accuracies over steps, tokens and time, their values at budgets, and paired differences."""

from collections.abc import Sequence

from msgspec import Struct

from arl.report.arms import Arm
from arl.report.axis_figures import axis_figures
from arl.report.differences import Difference, difference, pairs
from arl.report.figures import SAMPLED, SeedCurves, curves_figure
from arl.report.parts import Figure, Item, Prose, ReportSection, Table
from arl.report.quantities import AXES, GENERATED, Axis, Budget, Quantity, cell, curve, estimate, quantities
from arl.report.staleness_table import staleness_tables
from arl.report.statistics import MeanOfSeeds

INTERVALS = "In brackets: the 95 % bootstrap interval over seeds. With one seed there is none."
MOST_SENTENCES = 12


class ArmValue(Struct, frozen=True):
    """Hold a quantity of an arm at a budget."""

    arm: Arm
    quantity: Quantity
    budget: Budget
    estimate: MeanOfSeeds | None  # None: not measured there


class Comparison(Struct, frozen=True):
    """Hold every value and every difference of a report."""

    arms: list[Arm]
    quantities: list[Quantity]
    budgets: list[Budget]
    values: list[ArmValue]
    differences: list[Difference]

    def of(self, arm: Arm, quantity: Quantity, budget: Budget) -> MeanOfSeeds | None:
        """Return one value."""
        for value in self.values:
            if (value.arm.number, value.quantity, value.budget) == (arm.number, quantity, budget):
                return value.estimate
        return None

    @property
    def sentences(self) -> list[str]:
        """Return what differs at the last measurement, in the quantities that decide."""
        decisive = _decisive(self.quantities)
        last = [found for found in self.differences if found.is_last and found.quantity in decisive]
        return _at_most(last)


def compare(arms: Sequence[Arm], budgets: Sequence[Budget]) -> Comparison:
    """Compute values of every arm, and differences of every pair that a reader asks for."""
    compared = quantities(arms)
    values = []
    for quantity in compared:
        for budget in budgets:
            values += [ArmValue(arm, quantity, budget, estimate(arm, quantity, budget)) for arm in arms]
    differences = []
    for quantity in compared:
        for pair in pairs(arms):
            for budget in budgets:
                found = difference(pair, quantity, budget)
                if found is not None:
                    differences.append(found)
    return Comparison(list(arms), compared, list(budgets), values, differences)


def comparison_section(comparison: Comparison, notes: Sequence[str] = ()) -> ReportSection:
    """Write the section that compares arms: what decides first, everything else folded."""
    arms = comparison.arms
    decisive = _decisive(comparison.quantities)
    items: list[Item] = []
    if notes:
        items.append(Prose(id="notes", lines=list(notes)))
    items += axis_figures(arms, decisive, comparison.budgets)
    sentences = comparison.sentences
    if sentences:
        items.append(Prose(id="differences-said", lines=sentences))
    by_bound = staleness_tables(arms, comparison.quantities, comparison.budgets)
    values = [value_table(comparison, quantity) for quantity in comparison.quantities]
    items += by_bound or values
    items += [_figure(arms, quantity, "steps") for quantity in decisive]
    more: list[Item] = [*values] if by_bound else []
    for quantity in comparison.quantities:
        axes = [axis for axis in AXES if axis != "steps" or quantity not in decisive]
        more += [_figure(arms, quantity, axis) for axis in axes]
    if comparison.differences:
        more.append(_difference_table(comparison))
    return ReportSection(id="comparison", title="Which arm learns more?", items=items, more=more)


def value_table(comparison: Comparison, quantity: Quantity) -> Table:
    """Write a quantity of each arm at each budget."""
    rows = []
    for arm in comparison.arms:
        values = [comparison.of(arm, quantity, budget) for budget in comparison.budgets]
        if any(values):
            cells = [cell(arm, quantity, budget) for budget in comparison.budgets]
            rows.append([arm.name, str(len(arm.runs)), *cells])
    unit = "Percent. " if quantity.is_accuracy else ""
    return Table(
        id=f"values-{quantity.key}",
        title=f"{quantity.title[0].upper()}{quantity.title[1:]} at budgets",
        caption=f"{unit}{INTERVALS} A dash: not measured there. ≈: on the line between two evaluations.",
        header=["arm", "seeds", *(budget.title for budget in comparison.budgets)],
        rows=rows,
        numeric=[False, *[True] * (1 + len(comparison.budgets))],
    )


def _decisive(compared: Sequence[Quantity]) -> list[Quantity]:
    """Return the suites; without any, the generated reward, or else what there is."""
    suites = [quantity for quantity in compared if quantity.is_accuracy]
    generated = [quantity for quantity in compared if quantity.name == GENERATED]
    return suites or generated or list(compared)


def _at_most(found: Sequence[Difference]) -> list[str]:
    """Say every difference if they are few; else the largest of those that seeds do not deny, and count the others."""
    if len(found) <= MOST_SENTENCES:
        return [one.sentence for one in found]
    largest_first = sorted(found, key=lambda one: abs(one.estimate.mean), reverse=True)
    clear = [one for one in largest_first if not one.is_unclear]
    rest = len(clear[MOST_SENTENCES:])
    unclear = len(found) - len(clear)
    smaller = f"{rest} more differ by less; " if rest else ""
    verb = "shows" if unclear == 1 else "show"
    counted = f"Of {len(found)} pairs, {smaller}{unclear} {verb} no difference. The table of differences has them all."
    return [*(one.sentence for one in clear[:MOST_SENTENCES]), counted]


def _figure(arms: Sequence[Arm], quantity: Quantity, axis: Axis) -> Figure:
    seeds = []
    for arm in arms:
        found = [curve(run, quantity, axis) for run in arm.runs]
        seeds.append(SeedCurves(arm, [(one.x, quantity.scale * one.y) for one in found]))
    return curves_figure(
        name=f"curve-{quantity.key}-{axis}",
        title=f"{quantity.title[0].upper()}{quantity.title[1:]} over {AXES[axis]}",
        caption=f"Mean over seeds with its 95 % interval. Where a run ends early, the mean is of the others. {SAMPLED}",
        arms=seeds,
        x_title=AXES[axis],
        y_title=quantity.axis_title,
    )


def _difference_table(comparison: Comparison) -> Table:
    rows = [
        [
            found.pair.one.name,
            found.pair.other.name,
            found.quantity.title,
            found.budget.title,
            found.quantity.estimate(found.estimate, signed=True),
            str(found.estimate.seeds),
            "by seed" if found.is_paired else "no",
        ]
        for found in comparison.differences
    ]
    return Table(
        id="differences",
        title="Differences between arms",
        caption=f"First arm less second arm; accuracies in points. {INTERVALS} The last measurement is the last step "
        "that both arms have.",
        header=["arm", "less", "quantity", "at", "difference", "seeds", "paired"],
        rows=rows,
        numeric=[False, False, False, False, True, True, False],
    )
