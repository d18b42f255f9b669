"""Predict the mean age of trained tokens from how long groups queue, how many run, and how busy the trainer is.

A token is sampled, its group runs on, waits for its grades and in the buffer, and is trained x seconds after the token
was sampled. A step ends every T seconds, and the engines are B versions behind the trainer in the mean over time. The
trainer waits (1 − u) T for each batch, and no version comes of that. The token's age is the number of versions between
the two:

    A = (x − (1 − u) T) / T + B + ½

where the ½ is the mean of rounding up, because tokens are sampled at any time between two steps. By Little's law the
mean number of groups in a place is P / T times the mean time in it. So with Q groups that wait, C groups that generate,
and half of C's time left for a mean token,

    A = (Q + C / 2) / P + B + u − ½,    0 ≤ A ≤ η

J. D. C. Little, "A proof for the queuing formula L = λW", Operations Research 9(3), 1961.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from arl.report.arms import Arm
from arl.report.parts import Table
from arl.report.read_runs import LoadedRun
from arl.report.seed_means import over_seeds, text


class Flow(Struct, frozen=True, kw_only=True):
    """Hold what the formula needs of a stretch of a run: means over its steps."""

    problems_per_step: float  # P
    step_seconds: float  # T > 0, from the end of a step to the end of the next
    generation_seconds: float  # of a group, from its admission to the end of its last episode
    queue_seconds: float  # of a group, from the end of its last episode to the step that trains it
    versions_behind: float  # B, the mean over time of the trainer's version − the engines'
    utilization: float  # u, the share of T in which the trainer did not wait for its batch
    most_running: float  # groups that the engines' slots can decode at once; others wait before their first token
    bound: int | None  # η; None: no bound

    @property
    def waiting_groups(self) -> float:
        """Return Q, the mean number of groups that have ended and are not trained yet."""
        return self.problems_per_step * self.queue_seconds / self.step_seconds

    @property
    def running_groups(self) -> float:
        """Return C, the mean number of groups that generate."""
        admitted = self.problems_per_step * self.generation_seconds / self.step_seconds
        return min(admitted, self.most_running)


def predicted_mean_age(flow: Flow) -> float:
    """Return A, versions: the mean age of trained tokens that the formula at the top predicts."""
    in_groups = (flow.waiting_groups + flow.running_groups / 2) / flow.problems_per_step
    age = in_groups + flow.versions_behind + flow.utilization - 0.5
    if flow.bound is not None:
        age = min(age, flow.bound)
    return max(age, 0.0)


def mean_age_table(arms: Sequence[Arm]) -> Table | None:
    """Compare the formula with what runs measured, over the second half of their steps; None if no run can."""
    rows = []
    for arm in arms:
        measured = over_seeds(arm, measured_mean_age)
        predicted = over_seeds(arm, lambda run: predicted_mean_age(flow_of(run)))
        if measured is None or predicted is None:
            continue
        error = predicted.mean - measured.mean
        rows.append([arm.name, text(measured, ".2f"), text(predicted, ".2f"), f"{error:+.2f}"])
    if not rows:
        return None
    return Table(
        id="mean-age",
        title="Mean age of trained tokens, and what a formula says",
        caption="A = (Q + C/2)/P + B + u − ½ within 0 and the bound: groups that wait and that generate, versions that "
        "engines are behind, and how busy the trainer is (docs/staleness.md). Over the second half of the steps.",
        header=["arm", "measured", "formula", "difference"],
        rows=rows,
        numeric=[False, True, True, True],
    )


def measured_mean_age(run: LoadedRun) -> float:
    """Return the mean age of trained tokens in the second half of the run's steps, versions; NaN: not recorded."""
    return _late_mean(run, "token_age/mean")


def flow_of(run: LoadedRun) -> Flow:
    """Read what the formula needs from the second half of a run's steps. Numbers that it lacks are NaN."""
    grading = np.nan_to_num(_late_mean(run, "reward/wait_seconds"))
    return Flow(
        problems_per_step=_setting(run, "rollout.problems_per_step"),
        step_seconds=_late_mean(run, "time/step_s"),
        generation_seconds=max(_late_mean(run, "groups/generation_s") - grading, 0.0),
        queue_seconds=_late_mean(run, "groups/queue_s") + grading,
        versions_behind=_late_mean(run, "sync/versions_behind"),
        utilization=1.0 - _late_mean(run, "idle/trainer"),
        most_running=_decoded_groups(run),
        bound=run.recipe.get("rollout.staleness"),
    )


def _late_mean(run: LoadedRun, metric: str) -> float:
    """Return the mean of a metric over the second half of the steps, when the start no longer matters."""
    values = run.columns.number(metric)
    late = values[len(values) // 2 :]
    measured = late[np.isfinite(late)]
    return float(measured.mean()) if len(measured) else float("nan")


def _decoded_groups(run: LoadedRun) -> float:
    """Return how many groups the slots of all engines can decode at once."""
    slots = _setting(run, "engine.slots") * _setting(run, "engine.replicas")
    return slots / _setting(run, "rollout.group_size")


def _setting(run: LoadedRun, field: str) -> float:
    """Return a number of the recipe; NaN where an older recipe lacks the field."""
    return float(run.recipe.get(field, "nan"))
