"""Write the paper's Table 2 (arXiv 2505.24298): a row for each staleness bound, columns for objectives and suites."""

from collections.abc import Sequence

from arl.report.arms import STALENESS, Arm, order, show
from arl.report.parts import Table
from arl.report.quantities import Budget, Quantity, cell
from arl.report.speed_numbers import tokens_per_second
from arl.report.statistics import mean_of_seeds

OBJECTIVE = "objective."
Setting = tuple[tuple[str, str], ...]  # fields and their values as texts


def staleness_tables(arms: Sequence[Arm], compared: Sequence[Quantity], budgets: Sequence[Budget]) -> list[Table]:
    """Write one table at each budget and for each setting of what else differs; none without both axes."""
    fields = list(arms[0].settings)
    if STALENESS not in fields or not any(field.startswith(OBJECTIVE) for field in fields):
        return []
    others = [field for field in fields if field != STALENESS and not field.startswith(OBJECTIVE)]
    groups: dict[Setting, list[Arm]] = {}
    for arm in arms:
        groups.setdefault(_setting(arm, others), []).append(arm)
    tables = []
    for number, (setting, group) in enumerate(groups.items()):
        for budget in budgets:
            tables.append(_table(group, setting, compared, budget, f"table-2-{budget.title}-{number}"))
    return tables


def _setting(arm: Arm, fields: Sequence[str]) -> Setting:
    settings = arm.own_settings
    return tuple((arm.names[field], show(field, settings[field])) for field in fields if field in settings)


def _table(arms: Sequence[Arm], rest: Setting, compared: Sequence[Quantity], budget: Budget, name: str) -> Table:
    fields = [field for field in arms[0].settings if field.startswith(OBJECTIVE)]
    objectives = list(dict.fromkeys(_setting(arm, fields) for arm in arms))
    bounds = sorted({arm.settings[STALENESS] for arm in arms}, key=lambda bound: order(STALENESS, bound))
    suites = [quantity for quantity in compared if quantity.is_accuracy] or list(compared)
    by_place = {(arm.settings[STALENESS], _setting(arm, fields)): arm for arm in arms}
    header = ["η"]
    for suite in suites:
        header += [f"{suite.name} {_short(objective)}" for objective in objectives]
    header += [f"tokens/s {_short(objective)}" for objective in objectives]
    rows = []
    for bound in bounds:
        row = [show(STALENESS, bound)]
        for suite in suites:
            for objective in objectives:
                arm = by_place.get((bound, objective))
                row.append(cell(arm, suite, budget) if arm else "–")
        row += [_rate(by_place.get((bound, objective))) for objective in objectives]
        rows.append(row)
    others = ", ".join(f"{field} {value}" for field, value in rest)
    return Table(
        id=name.replace(" ", "-").replace(",", ""),
        title=f"Staleness and objectives, {budget.title}{f', {others}' if others else ''}",
        caption="As in Table 2 of arXiv 2505.24298. Accuracies in percent, with 95 % bootstrap intervals over seeds; "
        "trained tokens per second of the run's clock.",
        header=header,
        rows=rows,
        numeric=[True] * len(header),
    )


def _short(objective: Setting) -> str:
    return ", ".join(value for _, value in objective)


def _rate(arm: Arm | None) -> str:
    rate = mean_of_seeds([tokens_per_second(run) for run in arm.runs]) if arm else None
    return f"{rate.mean:,.0f}" if rate else "–"
