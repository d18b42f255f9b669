"""Show how old trained tokens were, and what their age did to ratios, weights and divergences."""

from collections.abc import Callable, Sequence

import numpy as np

from arl.metrics.names import AGE_BUCKETS
from arl.report import parts
from arl.report.arms import Arm
from arl.report.parts import Figure, Item, ReportSection, Table
from arl.report.statistics import text, weighted_mean

DIVERGENCES = {  # by age of the token -> the same over steps, and what it is
    "by_age/ratio": ("ratio/mean", "Ratio of current to proximal policy"),
    "by_age/clip_up": ("ratio/clip_fraction_up", "Share of tokens clipped above"),
    "by_age/clip_down": ("ratio/clip_fraction_down", "Share of tokens clipped below"),
    "by_age/behavior_weight": ("behavior_weight/uncapped_mean", "Behavior weight, uncapped"),
    "by_age/effective_sample_size": ("behavior_weight/effective_sample_size", "Effective sample size"),
    "by_age/kl_behavior_proximal": ("kl/behavior_proximal", "KL(behavior‖proximal)"),
    "by_age/kl_proximal_current": ("kl/proximal_current", "KL(proximal‖current)"),
    "by_age/kl_behavior_current": ("kl/behavior_current", "KL(behavior‖current)"),
    "by_age/kl_reference": ("kl/reference", "KL(current‖reference)"),
    "by_age/kl_teacher": ("kl/teacher", "divergence from the teacher"),
}
RATIO_PARTS = {  # with train.ratio_parts_every
    "by_age/log_mismatch": "log(sampled / behavior): engine and trainer",
    "by_age/log_staleness": "log(before the step / sampled): staleness",
    "by_age/log_update": "log(current / before the step): update",
    "by_age/k3_mismatch": "KL(behavior‖sampled): engine and trainer",
    "by_age/k3_staleness": "KL(sampled‖before the step): staleness",
    "by_age/k3_update": "KL(before the step‖current): update",
}
COLUMNS = {
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
NUMERICS = (
    "Tokens of age 0 were sampled by the very weights that train them, so what differs there is the numerics of engine "
    "and trainer alone; what is added at higher ages is lag."
)


def section(arms: Sequence[Arm]) -> ReportSection:
    """Write the section about staleness; figures of what no run recorded are left out."""
    figures = [
        parts.metric_curves(arms, "token_age/mean", "Mean age of trained tokens over training steps", "versions")
    ]
    for metric_by_age, (metric, title) in DIVERGENCES.items():
        figures.append(parts.metric_curves(arms, metric, f"{title} over training steps", title))
        figures.append(over_ages(arms, metric_by_age, title))
    figures += [over_ages(arms, metric, title) for metric, title in RATIO_PARTS.items()]
    items: list[Item] = [NUMERICS, _table(arms), *figures]
    return ReportSection(id="staleness", title="How old was what it learned from, and what did age do?", items=items)


def by_age(arm: Arm, metric: str) -> np.ndarray:
    """Return a metric by age bucket, (7,) float: mean over all steps, weighted by tokens, then over seeds."""
    recorded = [run for run in arm.runs if {metric, "by_age/tokens"} <= run.columns.keys()]
    if not recorded:
        return np.full(len(AGE_BUCKETS), np.nan)
    rows = np.stack([weighted_mean(run.columns[metric], run.columns["by_age/tokens"]) for run in recorded])
    return weighted_mean(rows, np.ones_like(rows))


def _table(arms: Sequence[Arm]) -> Table:
    def oldest(arm: Arm) -> str:
        return text(arm.estimate(lambda run: float(np.nanmax(run.number("staleness/max")))), ".0f")

    def mean_of(metric: str) -> Callable[[Arm], str]:
        return lambda arm: text(arm.mean(metric))

    return parts.arm_table(
        arms,
        "Ages and divergences",
        "Means over steps and seeds. A dash: not recorded, or the objective has no such number.",
        {"oldest token": oldest} | {name: mean_of(metric) for name, metric in COLUMNS.items()},
    )


def over_ages(arms: Sequence[Arm], metric: str, title: str) -> Figure:
    """Draw a metric by age bucket; without a series if no run recorded it."""
    measured = [(arm, by_age(arm, metric)) for arm in arms]
    places = np.arange(len(AGE_BUCKETS), dtype=float)
    return Figure(
        title=f"{title} by age of the token",
        caption="Mean over all steps weighted by tokens, then over seeds. Ages that no token has are left out.",
        x_title="age of the token, versions",
        y_title=title,
        series=[parts.line(arm.number, arm.name, places, own) for arm, own in measured if np.isfinite(own).any()],
        ticks=list(AGE_BUCKETS),
    )
