"""Say how fast each arm was, and where trainer and engines spent their time."""

from collections.abc import Callable, Sequence

import numpy as np

from arl.report.arms import Arm
from arl.report.figures import SAMPLED, curves_figure
from arl.report.parts import Figure, Item, ReportSection, Table
from arl.report.read_runs import LoadedRun
from arl.report.seed_means import curves_of, last_of, mean_of_steps, over_seeds, text
from arl.report.speed_numbers import UNEXPLAINED, Shares, engine_shares, tokens_per_second, trainer_shares

SharesOf = Callable[[LoadedRun], Shares]


def speed_section(arms: Sequence[Arm]) -> ReportSection:
    """Write the section about speed."""
    items: list[Item] = [
        _rates(arms),
        _shares_table("trainer-shares", "The trainer's time", arms, trainer_shares),
        _shares_table("engine-shares", "The engines' time", arms, engine_shares),
        _over_steps(arms, "rate", "Trained tokens per second", "throughput/trained_tokens_per_s", "tokens/s"),
        _over_steps(arms, "step-time", "Time of a step", "time/step_s", "seconds"),
    ]
    return ReportSection(id="speed", title="How fast, and what did each side wait for?", items=items)


def mean_shares(arm: Arm, shares_of: SharesOf) -> dict[str, float]:
    """Return the mean over seeds of each part of a side's time; of those that recorded it."""
    found = [shares_of(run) for run in arm.runs]
    names = dict.fromkeys(name for shares in found for name in shares)
    return {name: float(np.mean([shares[name] for shares in found if name in shares])) for name in names}


def _rates(arms: Sequence[Arm]) -> Table:
    rows = []
    for arm in arms:
        rate = over_seeds(arm, tokens_per_second)
        interval = "" if rate is None or rate.low is None else f" [{rate.low:,.0f}, {rate.high:,.0f}]"
        rows.append(
            [
                arm.name,
                f"{text(rate, ',.0f')}{interval}",
                text(over_seeds(arm, lambda run: float(np.nanmedian(run.columns.number("time/step_s"))))),
                text(last_of(arm, "time_s"), ",.1f"),
                text(over_seeds(arm, lambda run: float(np.nansum(run.columns.number("sync/swaps")))), ",.0f"),
                text(over_seeds(arm, lambda run: float(np.nansum(run.columns.number("sync/paused_s"))))),
                text(over_seeds(arm, lambda run: mean_of_steps(run, "sync/seconds"))),
                text(last_of(arm, "engines/restarts"), ".1f"),
            ]
        )
    return Table(
        id="speed-table",
        title="Speed",
        caption="Means over seeds; seconds are of the run's clock, which is virtual in world virtual. "
        "Tokens/s: trained tokens / time from the first admission to the last step.",
        header=["arm", "tokens/s", "median step, s", "time, s", "swaps", "paused, s", "swap, s", "restarts"],
        rows=rows,
        numeric=[False, *[True] * 7],
    )


def _over_steps(arms: Sequence[Arm], name: str, title: str, metric: str, unit: str) -> Figure:
    caption = f"Mean over seeds with its 95 % interval. {SAMPLED}"
    return curves_figure(name, title, caption, [curves_of(arm, metric) for arm in arms], "training steps", unit)


def _shares_table(name: str, title: str, arms: Sequence[Arm], shares_of: SharesOf) -> Table:
    of_arms = {arm.name: mean_shares(arm, shares_of) for arm in arms}
    named = dict.fromkeys(part for shares in of_arms.values() for part in shares if part != UNEXPLAINED)
    parts = [*named, UNEXPLAINED]
    rows = [[arm, *(_percent(shares.get(part)) for part in parts)] for arm, shares in of_arms.items()]
    return Table(
        id=name,
        title=title,
        caption="Percent of the time of all steps, mean over seeds. A dash: not recorded. Unexplained is what the "
        "named parts leave; below zero, parts overlap.",
        header=["arm", *parts],
        rows=rows,
        numeric=[False, *[True] * len(parts)],
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{round(100 * share, 1) + 0.0:.1f}"  # + 0.0: no minus before a zero
