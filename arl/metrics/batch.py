"""Compute the metrics of a step's batch (rewards, lengths, ages), and of the groups that ended since the last step."""

import math
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from arl.metrics.names import Record, part_metric
from arl.types import CORRECT, REJECTED, Batch, Trajectory, TrajectoryGroup

EQUAL_STEPS = 3  # in a row whose episodes all had one reward, after which it is said


class Ages:
    """Compute three ages of a batch when step v consumes it: of groups since dispatch and arrival, and of tokens.

    Trajectories without a loss token have no token age. If no trajectory of the batch has one, the means and maxima
    of token ages are undefined, and `metrics` leaves them out.
    """

    def __init__(self, batch: Batch) -> None:
        self._dispatch = [batch.version - group.dispatch_version for group in batch.groups]
        self._queue = [batch.version - group.arrival_version for group in batch.groups]
        self._staleness: list[int] = []  # of each trajectory with a loss token
        self.num_spanning = 0  # trajectories sampled by two or more versions
        token_ages: list[np.ndarray] = []
        for trajectory in _trajectories(batch):
            if not trajectory.loss_mask.any():
                continue
            ages = batch.version - trajectory.policy_versions[trajectory.loss_mask]
            self._staleness.append(int(ages.max()))
            self.num_spanning += bool(ages.max() > ages.min())
            token_ages.append(ages)
        self.tokens = _histogram(np.concatenate(token_ages)) if token_ages else []  # loss tokens by age

    def metrics(self) -> Record:
        """Compute staleness/…, token_age/…, versions/…, dispatch_age/… and queue_age/…."""
        record: Record = {"token_age/histogram": self.tokens}
        for name, ages in (("dispatch_age", self._dispatch), ("queue_age", self._queue)):
            record[f"{name}/mean"] = float(np.mean(ages))
            record[f"{name}/max"] = max(ages)
            record[f"{name}/histogram"] = _histogram(np.array(ages))
        if not self.tokens:
            return record
        num_tokens = sum(self.tokens)
        sum_of_ages = sum(age * count for age, count in enumerate(self.tokens))
        return record | {
            "staleness/max": max(self._staleness),
            "staleness/mean": float(np.mean(self._staleness)),
            "token_age/mean": sum_of_ages / num_tokens,
            "token_age/stale_fraction": 1 - self.tokens[0] / num_tokens,
            "versions/spanning_fraction": self.num_spanning / len(self._staleness),
        }


def _trajectories(batch: Batch) -> list[Trajectory]:
    return [trajectory for group in batch.groups for trajectory in group.trajectories]


def _histogram(ages: np.ndarray) -> list[int]:
    """Count the ages 0, 1, …, up to the largest."""
    counts: list[int] = np.bincount(ages).tolist()
    return counts


def batch_metrics(batch: Batch, consumed_at: float) -> Record:
    """Compute rewards, lengths and waits of what the step trains.

    Args:
        consumed_at: the clock when the step began with the batch, seconds.
    """
    trajectories = _trajectories(batch)
    rewards = np.array([trajectory.reward for trajectory in trajectories])
    lengths = np.array([trajectory.num_sampled for trajectory in trajectories])
    right = np.array([is_right(one.unshaped_reward, one.reward_parts) for one in trajectories])
    record: Record = {
        "reward/trained_mean": float(rewards.mean()),
        "reward/trained_std": float(rewards.std()),
        "length/mean": float(lengths.mean()),
        "length/p50": float(np.percentile(lengths, 50)),
        "length/p99": float(np.percentile(lengths, 99)),
        "length/max": int(lengths.max()),
        "truncated": float(np.mean([trajectory.truncated for trajectory in trajectories])),
        "tokens/trained": sum(int(trajectory.loss_mask.sum()) for trajectory in trajectories),
        "groups/generation_s": float(np.mean([group.arrival_time - group.dispatch_time for group in batch.groups])),
        "groups/queue_s": float(np.mean([consumed_at - group.arrival_time for group in batch.groups])),
    }
    if right.any():
        record["length/right_mean"] = float(lengths[right].mean())
    if not right.all():
        record["length/wrong_mean"] = float(lengths[~right].mean())
    parts: dict[str, list[float]] = {}  # in the order in which they are first named
    for trajectory in trajectories:
        for part, value in trajectory.reward_parts.items():
            parts.setdefault(part, []).append(value)
    for part, values in parts.items():
        record[part_metric(part)] = float(np.mean(values))
    return record


def is_right(unshaped_reward: float, parts: Mapping[str, float]) -> bool:
    """Return whether a scored episode counts as right: its part `correct`, or without it the whole reward, is ≥ 0.5."""
    return parts.get(CORRECT, unshaped_reward) >= 0.5


class EndedGroups(Struct):
    """Count groups and episodes that ended since the last step, trained or not."""

    groups: int = 0  # finished or lost
    rejected: int = 0
    scored: int = 0  # groups all of whose episodes were scored; the next three are among them
    all_right: int = 0
    all_wrong: int = 0
    equal: int = 0  # rewards
    episodes: int = 0  # scored, in any group
    sum_of_rewards: float = 0.0  # of these episodes
    errors: int = 0  # episodes of these that were graded 0 because grading failed

    def add(self, group: TrajectoryGroup, fate: str = "") -> None:
        """Count one more group; `fate` is why it was lost."""
        episodes = [t for t in group.trajectories if not math.isnan(t.reward)]
        is_scored = bool(episodes) and len(episodes) == len(group.trajectories)
        right = [is_right(t.unshaped_reward, t.reward_parts) for t in episodes]
        rewards = [t.reward for t in episodes]
        self.groups += 1
        self.rejected += fate == REJECTED
        self.scored += is_scored
        self.all_right += is_scored and all(right)
        self.all_wrong += is_scored and not any(right)
        self.equal += is_scored and len(set(rewards)) == 1
        self.episodes += len(episodes)
        self.sum_of_rewards += sum(rewards)
        self.errors += sum(bool(t.reward_error) for t in episodes)

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


class EqualRewards:
    """Notice a run whose rewards are all the same, from which a policy learns nothing."""

    def __init__(self) -> None:
        self._reward: float | None = None
        self._steps = 0  # in a row

    def step(self, batch: Batch) -> float | None:
        """Take a step's batch; return the one reward of the last EQUAL_STEPS steps when it is worth a line."""
        reward, *others = {trajectory.reward for trajectory in _trajectories(batch)}
        if others:
            self._reward = None
            return None
        self._steps = self._steps + 1 if reward == self._reward else 1
        self._reward = reward
        return reward if self._steps == EQUAL_STEPS else None
