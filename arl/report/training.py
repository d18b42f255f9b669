"""Show how training itself went: what was rewarded, how the policy answered, and how it was updated."""

from collections.abc import Callable, Sequence

from arl.metrics.names import METRICS, OF_OBJECTIVE, OF_PART
from arl.report import parts, token_ages
from arl.report.arms import Arm
from arl.report.parts import Figure, Item, ReportSection
from arl.report.statistics import text

SHOWN = {  # metric -> what it is, and its unit
    "reward/trained_mean": ("Reward", ""),
    "entropy": ("Entropy", "nats"),
    "length/mean": ("Response length", "tokens"),
    "truncated": ("Truncated responses", "share"),
    "grad_norm": ("Gradient norm", "before clipping"),
    "groups/equal_rewards": ("Groups of equal rewards", "share"),
    "learning_rate": ("Learning rate", "of the last minibatch"),
}


def section(arms: Sequence[Arm]) -> ReportSection:
    """Write the section about training: the usual metrics, each part of the reward, and what objectives log."""
    recorded = dict.fromkeys(name for arm in arms for run in arm.runs for name in run.columns)
    own = [name for name in recorded if name not in METRICS and name.startswith((OF_PART, OF_OBJECTIVE))]
    shown = {name: titles for name, titles in SHOWN.items() if name in recorded} | {name: (name, "") for name in own}
    by_age = {name for arm in arms for run in arm.runs for name in own if run.number(name).ndim > 1}
    figures: list[Figure] = []
    for name, (title, unit) in shown.items():
        if name in by_age:
            figures.append(token_ages.over_ages(arms, name, title))
        else:
            y_title = f"{title}, {unit}" if unit else title
            figures.append(parts.metric_curves(arms, name, f"{title} over training steps", y_title))
    table = parts.arm_table(
        arms,
        "Training at the last step",
        "Mean over seeds. A dash: not recorded.",
        {title: _last_of(name) for name, (title, _) in shown.items() if name not in by_age},
    )
    items: list[Item] = [*figures, table]
    return ReportSection(id="training", title="How did training go?", items=items)


def _last_of(metric: str) -> Callable[[Arm], str]:
    return lambda arm: text(arm.last(metric))
