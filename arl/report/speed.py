"""Say how fast each arm was, and where trainer and engines spent their time."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from arl.report.arms import Arm
from arl.report.figures import THINNED, SeedCurves, color, curves_figure
from arl.report.parts import Figure, Item, Prose, ReportSection, Table
from arl.report.read_runs import LoadedRun
from arl.report.seed_means import curves_of, last_of, mean_of_steps, not_recorded, over_seeds, text
from arl.report.speed_numbers import (
    IDLE,
    UNEXPLAINED,
    Shares,
    engine_shares,
    step_seconds,
    tokens_per_second,
    trainer_shares,
)

NEW = ("time/step_s", "time/pack_s", "wait/groups_s", "wait/bound_s", "wait/gate_s", "sync/swaps", "sync/paused_s")
RATE = "throughput/trained_tokens_per_s"
SharesOf = Callable[[LoadedRun], Shares | None]


def speed_section(arms: Sequence[Arm]) -> ReportSection:
    """Write the section about speed."""
    items: list[Item] = [
        _rates(arms),
        _shares_figure("trainer-time", "Where the trainer's time went", arms, trainer_shares),
        _shares_table("trainer-shares", "The trainer's time", arms, trainer_shares),
        _shares_figure("engine-time", "Where the engines' time went", arms, engine_shares),
        _shares_table("engine-shares", "The engines' time", arms, engine_shares),
        _over_steps("rate", "Trained tokens per second", "tokens/s", [curves_of(arm, RATE) for arm in arms]),
        _over_steps("step-time", "Time of a step", "seconds", [_step_times(arm) for arm in arms]),
    ]
    missing = not_recorded(arms, NEW)
    if missing:
        items.insert(0, Prose(id="speed-missing", lines=missing))
    return ReportSection(id="speed", title="How fast, and what did each side wait for?", items=items)


def mean_shares(arm: Arm, shares_of: SharesOf) -> dict[str, float]:
    """Return the mean over seeds of each part of a side's time; of those that recorded it."""
    found = [shares for run in arm.runs if (shares := shares_of(run)) is not None]
    names = dict.fromkeys(name for shares in found for name in shares)
    means = {}
    for name in names:
        values = [shares[name] for shares in found if name in shares]
        means[name] = float(np.mean(values))
    return means


def _rates(arms: Sequence[Arm]) -> Table:
    rows = []
    for arm in arms:
        rate = over_seeds(arm, tokens_per_second)
        interval = "" if rate is None or rate.low is None else f" [{rate.low:,.0f}, {rate.high:,.0f}]"
        rows.append(
            [
                arm.name,
                f"{text(rate, ',.0f')}{interval}",
                text(over_seeds(arm, _median_step)),
                text(last_of(arm, "time_s"), ",.1f"),
                text(over_seeds(arm, lambda run: _total(run, "sync/swaps")), ",.0f"),
                text(over_seeds(arm, lambda run: _total(run, "sync/paused_s"))),
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


def _median_step(run: LoadedRun) -> float:
    seconds = step_seconds(run)
    return float(np.nanmedian(seconds)) if np.isfinite(seconds).any() else float("nan")


def _total(run: LoadedRun, metric: str) -> float:
    values = run.columns.number(metric)
    return float(np.nansum(values)) if np.isfinite(values).any() else float("nan")


def _step_times(arm: Arm) -> SeedCurves:
    return SeedCurves(arm, [(run.columns.steps.astype(float), step_seconds(run)) for run in arm.runs])


def _over_steps(name: str, title: str, unit: str, curves: list[SeedCurves]) -> Figure:
    caption = f"Mean over seeds with its 95 % interval. {THINNED}"
    return curves_figure(name, title, caption, curves, "training steps", unit)


def _names_of_parts(arms: Sequence[Arm], shares_of: SharesOf) -> list[str]:
    """Return the parts in their order, what is not explained at the end."""
    names = dict.fromkeys(name for arm in arms for name in mean_shares(arm, shares_of))
    last = [name for name in (IDLE, UNEXPLAINED) if name in names]
    return [*(name for name in names if name not in last), *last]


def _shares_figure(name: str, title: str, arms: Sequence[Arm], shares_of: SharesOf) -> Figure:
    """Stack the parts of each arm's time, in percent."""
    traces: list[dict[str, Any]] = []
    for number, part in enumerate(_names_of_parts(arms, shares_of)):
        shares = [mean_shares(arm, shares_of).get(part) for arm in arms]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": part,
                "marker": {"color": "silver" if part == UNEXPLAINED else color(number)},
                "y": [arm.name for arm in arms],
                "x": [None if share is None else _rounded(share, 2) for share in shares],
            }
        )
    return Figure(
        id=name,
        title=title,
        caption="Percent of the time of all steps, mean over seeds. What the named parts leave is a part of its own; "
        "below zero, parts overlap.",
        traces=traces,
        layout={
            "barmode": "relative",
            "xaxis": {"title": {"text": "percent of the time"}},
            "yaxis": {"autorange": "reversed"},  # the first arm on top
        },
    )


def _shares_table(name: str, title: str, arms: Sequence[Arm], shares_of: SharesOf) -> Table:
    parts = _names_of_parts(arms, shares_of)
    rows = []
    for arm in arms:
        shares = mean_shares(arm, shares_of)
        rows.append([arm.name, *(_percent(shares.get(part)) for part in parts)])
    return Table(
        id=name,
        title=title,
        caption="Percent of the time of all steps. A dash: not recorded.",
        header=["arm", *parts],
        rows=rows,
        numeric=[False, *[True] * len(parts)],
    )


def _percent(share: float | None) -> str:
    if share is None:
        return "–"
    return f"{_rounded(share, 1):.1f}"


def _rounded(share: float, digits: int) -> float:
    """Return a share in percent, without a minus before a zero."""
    return round(100 * share, digits) + 0.0
