"""Choose which finished groups are trained: `rollout.filter`, `module:function`."""

from collections.abc import Callable, Sequence

from arl.types import Problem, Trajectory

Filter = Callable[[Problem, Sequence[Trajectory]], bool]


def reward_varies(problem: Problem, trajectories: Sequence[Trajectory]) -> bool:
    """Keep groups whose rewards differ: the dynamic sampling of DAPO (arXiv 2503.14476 §3.2).

    A group of equal rewards has no advantage to learn from.
    """
    del problem
    return len({t.reward for t in trajectories}) > 1


def keep_all(problem: Problem, trajectories: Sequence[Trajectory]) -> bool:
    """Keep every group."""
    del problem, trajectories
    return True
