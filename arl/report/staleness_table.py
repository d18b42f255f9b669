"""Write the paper's Table 2 (arXiv 2505.24298): a row for each staleness bound, columns for objectives and suites."""

from collections.abc import Sequence
from typing import Any

from arl.report.arms import STALENESS, Arm, exact, order, show
from arl.report.parts import Table
from arl.report.quantities import Budget, Quantity, cell
from arl.report.seed_means import over_seeds, text
from arl.report.speed_numbers import tokens_per_second

OBJECTIVE = "objective."
Place = tuple[bytes, bytes]  # the bound and the objective of an arm: its row and its column
CAPTION = (
    "As in Table 2 of arXiv 2505.24298. Accuracies in percent, with 95 % bootstrap intervals over seeds; "
    "trained tokens per second of the run's clock."
)


def staleness_tables(arms: Sequence[Arm], compared: Sequence[Quantity], budgets: Sequence[Budget]) -> list[Table]:
    """Write one table at each budget and for each setting of what else differs; none without both axes."""
    fields = list(arms[0].settings)
    of_objective = [field for field in fields if field.startswith(OBJECTIVE)]
    if STALENESS not in fields or not of_objective:
        return []
    others = [field for field in fields if field not in (STALENESS, *of_objective)]
    groups: dict[bytes, list[Arm]] = {}
    for arm in arms:
        setting = exact(_setting(arm, others))
        groups.setdefault(setting, []).append(arm)
    accuracies = [quantity for quantity in compared if quantity.is_accuracy]
    suites = accuracies or list(compared)
    tables = []
    for number, group in enumerate(groups.values()):
        grid = _Grid(group, of_objective)
        rest = _in_words(group[0], others)
        tables += [_table(grid, number, rest, suites, budget) for budget in budgets]
    return tables


def _table(grid: "_Grid", number: int, rest: str, suites: Sequence[Quantity], budget: Budget) -> Table:
    """Write the table of a grid at one budget.

    Args:
        number: of the grid, among those of the report.
        rest: the settings that all its arms share, as its title ends.
    """
    name = f"table-2-{budget.title}-{number}"
    header = grid.header(suites)
    return Table(
        id=name.replace(" ", "-").replace(",", ""),
        title=f"Staleness and objectives, {budget.title}{rest}",
        caption=CAPTION,
        header=header,
        rows=grid.rows(suites, budget),
        numeric=[True] * len(header),
    )


def _setting(arm: Arm, fields: Sequence[str]) -> dict[str, Any]:
    settings = arm.own_settings
    return {field: settings[field] for field in fields if field in settings}


def _in_words(arm: Arm, fields: Sequence[str]) -> str:
    """Write settings behind a title, as in `, learning_rate 0.0003`."""
    settings = _setting(arm, fields)
    words = [f", {arm.names[field]} {show(field, value)}" for field, value in settings.items()]
    return "".join(words)


class _Grid:
    """Place arms by bound and objective. A column of the table is a suite, or the speed, under one objective."""

    def __init__(self, arms: Sequence[Arm], of_objective: Sequence[str]) -> None:
        self._arms: dict[Place, Arm] = {}
        self._bounds: dict[bytes, Any] = {}
        self._objectives: dict[bytes, str] = {}  # and what it is called
        for arm in sorted(arms, key=_order_of_bound):
            bound = arm.settings[STALENESS]
            objective = _setting(arm, of_objective)
            words = [show(field, value) for field, value in objective.items()]
            row = exact(bound)
            column = exact(objective)
            self._arms[row, column] = arm
            self._bounds[row] = bound
            self._objectives[column] = ", ".join(words)

    def header(self, suites: Sequence[Quantity]) -> list[str]:
        """Name the columns."""
        measures = [suite.name for suite in suites]
        measures.append("tokens/s")
        names = ["η"]
        for measured in measures:
            names += [f"{measured} {objective}" for objective in self._objectives.values()]
        return names

    def rows(self, suites: Sequence[Quantity], budget: Budget) -> list[list[str]]:
        """Write a row for each bound; a dash where there is no arm."""
        rows = []
        for bound, value in self._bounds.items():
            arms = [self._arms.get((bound, objective)) for objective in self._objectives]
            row = [show(STALENESS, value)]
            for suite in suites:
                row += [cell(arm, suite, budget) if arm else "–" for arm in arms]
            row += [_rate(arm) if arm else "–" for arm in arms]
            rows.append(row)
        return rows


def _order_of_bound(arm: Arm) -> tuple[int, float, str]:
    """Return by what arms are sorted."""
    return order(STALENESS, arm.settings[STALENESS])


def _rate(arm: Arm) -> str:
    return text(over_seeds(arm, tokens_per_second), ",.0f")
