"""Show how training itself went: what was rewarded, how the policy answered, and how it was updated."""

from collections.abc import Sequence

from arl.metrics.names import METRICS, OF_ENV, OF_OBJECTIVE, OF_PART
from arl.report import parts, token_ages
from arl.report.arms import Arm
from arl.report.parts import Item, ReportSection

SHOWN = ("reward/trained_mean", "entropy", "length/mean", "truncated", "grad_norm")


def section(arms: Sequence[Arm]) -> ReportSection:
    """Write the section about training: the usual metrics, each part of the reward, and what objectives log."""
    recorded = {name: column for arm in arms for run in arm.runs for name, column in run.columns.items()}
    own = [name for name in recorded if name not in METRICS and name.startswith((OF_PART, OF_ENV, OF_OBJECTIVE))]
    by_age = [name for name in own if recorded[name].ndim > 1]
    over_steps = [name for name in (*SHOWN, *own) if name not in by_age]
    columns = {name: parts.last_of(name) for name in over_steps}
    table = parts.arm_table(arms, "Training at the last step", "Mean over seeds. A dash: not recorded.", columns)
    figures: list[Item] = [parts.metric_curves(arms, name, name, name) for name in over_steps]
    figures += [token_ages.over_ages(arms, name, name) for name in by_age]
    return ReportSection(id="training", title="How did training go?", items=[*figures, table])
