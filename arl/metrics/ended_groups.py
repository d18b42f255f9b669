"""Count the groups that ended since the last step, trained or not: how many of them are right, and what they earned."""

import math
from collections.abc import Mapping

from msgspec import Struct

from arl.metrics.names import Record
from arl.types import CORRECT, REJECTED, TrajectoryGroup


def is_right(unshaped_reward: float, parts: Mapping[str, float]) -> bool:
    """Return whether a scored episode counts as right: its part `correct`, or without it the whole reward, is ≥ 0.5."""
    return parts.get(CORRECT, unshaped_reward) >= 0.5


class EndedGroups(Struct, frozen=True):
    """Count groups and episodes that ended since the last step."""

    groups: int = 0  # finished or lost
    rejected: int = 0
    scored: int = 0  # groups all of whose episodes were scored; the next three are among them
    all_right: int = 0
    all_wrong: int = 0
    equal: int = 0  # rewards
    episodes: int = 0  # scored, in any group
    sum_of_rewards: float = 0.0  # of these episodes
    errors: int = 0  # episodes of these that were graded 0 because grading failed

    def plus(self, group: TrajectoryGroup, fate: str = "") -> "EndedGroups":
        """Return the counts with one more group; `fate` is why it was lost."""
        episodes = [t for t in group.trajectories if not math.isnan(t.reward)]
        is_scored = bool(episodes) and len(episodes) == len(group.trajectories)
        right = [is_right(t.unshaped_reward, t.reward_parts) for t in episodes]
        rewards = [t.reward for t in episodes]
        return EndedGroups(
            groups=self.groups + 1,
            rejected=self.rejected + (fate == REJECTED),
            scored=self.scored + is_scored,
            all_right=self.all_right + (is_scored and all(right)),
            all_wrong=self.all_wrong + (is_scored and not any(right)),
            equal=self.equal + (is_scored and len(set(rewards)) == 1),
            episodes=self.episodes + len(episodes),
            sum_of_rewards=self.sum_of_rewards + sum(rewards),
            errors=self.errors + sum(bool(t.reward_error) for t in episodes),
        )

    def metrics(self) -> Record:
        """Compute shares and means; those of nothing are left out."""
        record: Record = {"reward/errors": self.errors}
        if self.groups:
            record["groups/rejection_rate"] = self.rejected / self.groups
        if self.episodes:
            record["reward/generated_mean"] = self.sum_of_rewards / self.episodes
        if self.scored:
            record["groups/all_right"] = self.all_right / self.scored
            record["groups/all_wrong"] = self.all_wrong / self.scored
            record["groups/mixed"] = (self.scored - self.all_right - self.all_wrong) / self.scored
            record["groups/pass_at_g"] = (self.scored - self.all_wrong) / self.scored
            record["groups/equal_rewards"] = self.equal / self.scored
        return record
