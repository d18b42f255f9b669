"""Write the paper's Table 2 (arXiv 2505.24298): a row for each staleness bound, columns for objectives and suites."""

from collections.abc import Sequence
from typing import Any

from arl.report.arms import STALENESS, Arm, order, show
from arl.report.parts import Table
from arl.report.quantities import Budget, Quantity, cell
from arl.report.speed_numbers import tokens_per_second
from arl.report.statistics import mean_of_seeds

OBJECTIVE = "objective."
Setting = tuple[tuple[str, str], ...]  # fields and their values as texts
Place = tuple[Any, Setting]  # the bound and the objective of an arm: its row and its column
CAPTION = (
    "As in Table 2 of arXiv 2505.24298. Accuracies in percent, with 95 % bootstrap intervals over seeds; "
    "trained tokens per second of the run's clock."
)


def staleness_tables(arms: Sequence[Arm], compared: Sequence[Quantity], budgets: Sequence[Budget]) -> list[Table]:
    """Write one table at each budget and for each setting of what else differs; none without both axes."""
    fields = list(arms[0].settings)
    if STALENESS not in fields or not any(field.startswith(OBJECTIVE) for field in fields):
        return []
    others = [field for field in fields if field != STALENESS and not field.startswith(OBJECTIVE)]
    groups: dict[Setting, list[Arm]] = {}
    for arm in arms:
        setting = _setting(arm, others)
        groups.setdefault(setting, []).append(arm)
    suites = [quantity for quantity in compared if quantity.is_accuracy] or list(compared)
    tables = []
    for number, (setting, group) in enumerate(groups.items()):
        grid = _Grid(group)
        header = grid.header(suites)
        rest = "".join(f", {field} {value}" for field, value in setting)
        for budget in budgets:
            table = Table(
                id=f"table-2-{budget.title}-{number}".replace(" ", "-").replace(",", ""),
                title=f"Staleness and objectives, {budget.title}{rest}",
                caption=CAPTION,
                header=header,
                rows=grid.rows(suites, budget),
                numeric=[True] * len(header),
            )
            tables.append(table)
    return tables


def _setting(arm: Arm, fields: Sequence[str]) -> Setting:
    settings = arm.own_settings
    there = [field for field in fields if field in settings]
    return tuple((arm.names[field], show(field, settings[field])) for field in there)


class _Grid:
    """Place arms by bound and objective. A column of the table is a suite, or the speed, under one objective."""

    def __init__(self, arms: Sequence[Arm]) -> None:
        fields = [field for field in arms[0].settings if field.startswith(OBJECTIVE)]
        self._arms: dict[Place, Arm] = {}
        for arm in arms:
            place = (arm.settings[STALENESS], _setting(arm, fields))
            self._arms[place] = arm
        bounds = {bound for bound, _ in self._arms}
        self._bounds = sorted(bounds, key=lambda bound: order(STALENESS, bound))
        self._objectives = list(dict.fromkeys(objective for _, objective in self._arms))

    def header(self, suites: Sequence[Quantity]) -> list[str]:
        """Name the columns."""
        names = ["η"]
        for measured in [*(suite.name for suite in suites), "tokens/s"]:
            names += [f"{measured} {_short(objective)}" for objective in self._objectives]
        return names

    def rows(self, suites: Sequence[Quantity], budget: Budget) -> list[list[str]]:
        """Write a row for each bound; a dash where there is no arm."""
        rows = []
        for bound in self._bounds:
            arms = [self._arms.get((bound, objective)) for objective in self._objectives]
            row = [show(STALENESS, bound)]
            for suite in suites:
                row += [cell(arm, suite, budget) if arm else "–" for arm in arms]
            row += [_rate(arm) if arm else "–" for arm in arms]
            rows.append(row)
        return rows


def _short(objective: Setting) -> str:
    return ", ".join(value for _, value in objective)


def _rate(arm: Arm) -> str:
    rates = [tokens_per_second(run) for run in arm.runs]
    rate = mean_of_seeds(rates)
    return f"{rate.mean:,.0f}" if rate else "–"
