"""Show how old trained tokens were, and what their age did to ratios, weights and divergences."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from arl.metrics.names import AGE_BUCKETS
from arl.report.arms import Arm
from arl.report.figures import SAMPLED, color, curves_figure, layout, line_of, numbers
from arl.report.parts import Figure, Item, Prose, ReportSection, Table
from arl.report.seed_means import (
    by_arm,
    curves_of,
    metric_of,
    over_seeds,
    text,
    weighted_rows,
)
from arl.report.statistics import quotients

MOST_SENTENCES = 6  # arms that have one
KL = "by_age/kl_behavior_proximal"


class Divergence(Struct, frozen=True):
    """Name a number about computed tokens: its metric over steps, and the one by age of the token."""

    metric: str
    by_age: str
    title: str


DIVERGENCES = (
    Divergence("ratio/mean", "by_age/ratio", "Ratio of current to proximal policy"),
    Divergence("ratio/clip_fraction_up", "by_age/clip_up", "Share of tokens clipped above"),
    Divergence("ratio/clip_fraction_down", "by_age/clip_down", "Share of tokens clipped below"),
    Divergence("behavior_weight/uncapped_mean", "by_age/behavior_weight", "Behavior weight, uncapped"),
    Divergence("behavior_weight/effective_sample_size", "by_age/effective_sample_size", "Effective sample size"),
    Divergence("kl/behavior_proximal", KL, "KL(behavior‖proximal)"),
    Divergence("kl/proximal_current", "by_age/kl_proximal_current", "KL(proximal‖current)"),
    Divergence("kl/behavior_current", "by_age/kl_behavior_current", "KL(behavior‖current)"),
)


def staleness_section(arms: Sequence[Arm]) -> ReportSection:
    """Write the section about staleness."""
    items: list[Item] = [Prose(id="staleness-said", lines=_sentences(arms)), _table(arms)]
    items.append(_over_steps(arms, "token-age", "token_age/mean", "Mean age of trained tokens, versions"))
    for divergence in DIVERGENCES:
        items += _figures(arms, divergence)
    return ReportSection(id="staleness", title="How old was what it learned from, and what did age do?", items=items)


def by_age(arm: Arm, metric: str) -> np.ndarray:
    """Return a metric by age bucket, (7,) float: mean over all steps, weighted by tokens, then over seeds."""
    rows = []
    for run in arm.runs:
        values = run.columns.table(metric)
        tokens = run.columns.table("by_age/tokens")
        if values.shape == tokens.shape and values.shape[1] == len(AGE_BUCKETS):
            rows.append(weighted_rows(values, tokens))
    if not rows:
        return np.full(len(AGE_BUCKETS), np.nan)
    measured = np.isfinite(rows)
    known = np.where(measured, rows, 0.0)
    return quotients(known.sum(axis=0), measured.sum(axis=0))


def _sentences(arms: Sequence[Arm]) -> list[str]:
    lines = [
        "Tokens of age 0 were sampled by the very weights that train them, so what differs there is the numerics of "
        "engine and trainer alone; what is added at higher ages is lag."
    ]
    if len(arms) <= MOST_SENTENCES:  # the figures by age show the same of more
        lines += by_arm(arms, _mismatch_and_lag)
    return lines


def _mismatch_and_lag(arm: Arm) -> list[str]:
    """Compare the divergence of the freshest tokens with that of the oldest, if there are both."""
    values = by_age(arm, KL)
    known = np.flatnonzero(np.isfinite(values))
    if len(known) < 2 or known[0] != 0:
        return []
    oldest = int(known[-1])
    return [
        f"KL(behavior‖proximal) is {values[0]:.2g} nats at age 0 and {values[oldest]:.2g} at age {AGE_BUCKETS[oldest]}."
    ]


def _table(arms: Sequence[Arm]) -> Table:
    columns = {
        "token age": "token_age/mean",
        "dispatch age": "dispatch_age/mean",
        "queue age": "queue_age/mean",
        "stale tokens": "token_age/stale_fraction",
        "clipped": "ratio/clip_fraction",
        "weight, used": "behavior_weight/mean",
        "capped": "behavior_weight/capped_fraction",
        "effective sample": "behavior_weight/effective_sample_size",
        "KL(b‖p)": "kl/behavior_proximal",
        "KL(p‖c)": "kl/proximal_current",
    }
    rows = []
    for arm in arms:
        oldest = over_seeds(arm, lambda run: float(np.nanmax(run.columns.number("staleness/max"))))
        means = [text(metric_of(arm, metric)) for metric in columns.values()]
        rows.append([arm.name, text(oldest, ".0f"), *means])
    return Table(
        id="staleness-table",
        title="Ages and divergences",
        caption="Means over steps and seeds. A dash: not recorded, or the objective has no such number.",
        header=["arm", "oldest token", *columns],
        rows=rows,
        numeric=[False, *[True] * (1 + len(columns))],
    )


def _over_steps(arms: Sequence[Arm], name: str, metric: str, title: str) -> Figure:
    return curves_figure(
        name=f"{name}-over-steps",
        title=f"{title} over training steps",
        caption=f"`{metric}`, mean over seeds with its 95 % interval. {SAMPLED}",
        arms=[curves_of(arm, metric) for arm in arms],
        x_title="training steps",
        y_title=title,
    )


def _figures(arms: Sequence[Arm], divergence: Divergence) -> list[Figure]:
    """Draw one number over steps, and by age; nothing that no run recorded."""
    figures = []
    name = divergence.by_age.removeprefix("by_age/").replace("_", "-")
    if any(curves_of(arm, divergence.metric).curves for arm in arms):
        figures.append(_over_steps(arms, name, divergence.metric, divergence.title))
    traces = [trace for arm in arms if (trace := _age_trace(arm, divergence.by_age)) is not None]
    if traces:
        axes = layout("age of the token, versions", divergence.title)
        axes["xaxis"] |= {"type": "category", "categoryorder": "array", "categoryarray": list(AGE_BUCKETS)}
        figures.append(
            Figure(
                id=f"{name}-by-age",
                title=f"{divergence.title} by age of the token",
                caption=f"`{divergence.by_age}`, mean over all steps weighted by tokens, then over seeds. A point is "
                "missing where no token has that age.",
                traces=traces,
                layout=axes,
            )
        )
    return figures


def _age_trace(arm: Arm, metric: str) -> dict[str, Any] | None:
    values = by_age(arm, metric)
    if not np.isfinite(values).any():
        return None
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": arm.name,
        "x": list(AGE_BUCKETS),
        "y": numbers(values),
        "line": line_of(arm.number),
        "marker": {"color": color(arm.number)},
    }
