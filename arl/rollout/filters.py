"""Choose which finished groups are trained: `rollout.filter`, `module:function`."""

from collections.abc import Sequence
from typing import Protocol

from arl.types import Problem, Trajectory


class Filter(Protocol):
    """Decide whether a finished group is trained.

    def some_right(problem: Problem, trajectories: Sequence[Trajectory]) -> bool:
        return any(trajectory.reward == 1.0 for trajectory in trajectories)
    """

    def __call__(self, problem: Problem, trajectories: Sequence[Trajectory]) -> bool: ...


def reward_varies(problem: Problem, trajectories: Sequence[Trajectory]) -> bool:
    """Keep groups whose rewards differ: the dynamic sampling of DAPO (arXiv 2503.14476 §3.2).

    A group of equal rewards has no advantage to learn from.
    """
    del problem
    distinct = {trajectory.reward for trajectory in trajectories}
    return len(distinct) > 1


def keep_all(problem: Problem, trajectories: Sequence[Trajectory]) -> bool:
    """Keep every group."""
    del problem, trajectories
    return True
