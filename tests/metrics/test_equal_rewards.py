"""A run that cannot learn, because its rewards are all the same, says so once."""

from arl.metrics.equal_rewards import STEPS, EqualRewards
from arl.types import Batch, Problem, TrajectoryGroup
from tests.metrics.test_recorder import trajectory


def batch(*rewards: float) -> Batch:
    groups = [
        TrajectoryGroup(i, Problem("p"), (trajectory([0], reward),), 0, 0.0, 0, 0.0) for i, reward in enumerate(rewards)
    ]
    return Batch(0, tuple(groups))


def test_equal_rewards_are_said_once_after_some_steps_and_again_after_others() -> None:
    equal = EqualRewards("runs/mine")
    said = [equal.step(batch(0.0, 0.0)) for _ in range(STEPS + 2)]
    assert [line is not None for line in said] == [False] * (STEPS - 1) + [True, False, False]
    assert said[STEPS - 1] == (
        f"every episode of the last {STEPS} steps had the reward 0, so there is nothing to learn from; "
        "`arl samples runs/mine` shows what was answered and how it was graded"
    )
    assert equal.step(batch(0.0, 1.0)) is None
    assert [equal.step(batch(1.0)) is not None for _ in range(STEPS)] == [False] * (STEPS - 1) + [True]
