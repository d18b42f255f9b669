"""Predict the mean age of trained tokens from how long groups queue, how many run, and how busy the trainer is.

A token is sampled, its group runs on, waits for its grades and in the buffer, and is trained x seconds after the token
was sampled. A step ends every T seconds, and δ seconds later the engines serve its version. The trainer waits (1 − u) T
for each batch, and no version comes of that. The token's age is the number of versions between the two:

    A = (x + δ − (1 − u) T) / T + ½

where the ½ is the mean of rounding up, because tokens are sampled at any time between two loads. By Little's law the
mean number of groups in a place is P / T times the mean time in it. So with Q groups that wait, C groups that generate,
and half of C's time left for a mean token,

    A = (Q + C / 2) / P + δ / T + u − ½,    0 ≤ A ≤ η

J. D. C. Little, "A proof for the queuing formula L = λW", Operations Research 9(3), 1961.
"""

from msgspec import Struct


class Flow(Struct, frozen=True, kw_only=True):
    """Hold what the formula needs of a stretch of a run: means over its steps."""

    problems_per_step: int  # P
    step_seconds: float  # T > 0, from the end of a step to the end of the next
    generation_seconds: float  # of a group, from its admission to the end of its last episode
    queue_seconds: float  # of a group, from the end of its last episode to the step that trains it
    swap_seconds: float  # δ, from the end of a step to the load of its weights
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
    in_transit = flow.swap_seconds / flow.step_seconds
    age = in_groups + in_transit + flow.utilization - 0.5
    if flow.bound is not None:
        age = min(age, flow.bound)
    return max(age, 0.0)
