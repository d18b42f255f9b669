"""Filters say which finished groups are worth training: `rollout.filter`, `module:function`."""

from collections.abc import Callable, Sequence

from arl.types import Problem, Trajectory

Filter = Callable[[Problem, Sequence[Trajectory]], bool]


def reward_varies(problem: Problem, trajectories: Sequence[Trajectory]) -> bool:
    """Dynamic sampling of DAPO (arXiv 2503.14476 §3.2): a group of equal rewards has no advantage to learn from."""
    del problem
    return len({t.reward for t in trajectories}) > 1


def keep_all(problem: Problem, trajectories: Sequence[Trajectory]) -> bool:
    """No filter."""
    del problem, trajectories
    return True
