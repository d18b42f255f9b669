"""Notice a run whose rewards are all the same, from which a policy learns nothing."""

from arl.types import Batch

STEPS = 3  # in a row


class EqualRewards:
    """Count the steps in a row whose episodes all had one reward.

    Args:
        run: its directory, as a hint names it.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._reward: float | None = None
        self._steps = 0

    def step(self, batch: Batch) -> str | None:
        """Take a step's batch; return a line for the console in the step in which it is worth one."""
        rewards = {trajectory.reward for group in batch.groups for trajectory in group.trajectories}
        reward = rewards.pop()
        if rewards:
            self._reward = None
            return None
        self._steps = self._steps + 1 if reward == self._reward else 1
        self._reward = reward
        if self._steps != STEPS:
            return None
        return (
            f"every episode of the last {STEPS} steps had the reward {reward:g}, so there is nothing to learn from; "
            f"`arl samples {self._run}` shows what was answered and how it was graded"
        )
