"""Compute the metrics of a step's batch: rewards, lengths, and how old it is."""

from collections.abc import Sequence

import numpy as np

from arl.metrics.ended_groups import is_right
from arl.metrics.names import Record, part_metric
from arl.types import Batch, Trajectory


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
        record |= _group_ages("dispatch_age", self._dispatch)
        record |= _group_ages("queue_age", self._queue)
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


def _group_ages(name: str, ages: Sequence[int]) -> Record:
    return {
        f"{name}/mean": float(np.mean(ages)),
        f"{name}/max": max(ages),
        f"{name}/histogram": _histogram(np.array(ages)),
    }


def group_times(batch: Batch, consumed_at: float) -> Record:
    """Compute how long groups took and waited; `consumed_at` is the clock when the step began with them, seconds."""
    return {
        "groups/generation_s": float(np.mean([group.arrival_time - group.dispatch_time for group in batch.groups])),
        "groups/queue_s": float(np.mean([consumed_at - group.arrival_time for group in batch.groups])),
    }


def rollout_metrics(batch: Batch) -> Record:
    """Compute rewards and lengths of the trajectories that the step trains."""
    trajectories = _trajectories(batch)
    rewards = np.array([trajectory.reward for trajectory in trajectories])
    lengths = np.array([trajectory.num_sampled for trajectory in trajectories])
    num_loss_tokens = sum(int(trajectory.loss_mask.sum()) for trajectory in trajectories)
    truncated = [trajectory.truncated for trajectory in trajectories]
    record: Record = {
        "reward/trained_mean": float(rewards.mean()),
        "reward/trained_std": float(rewards.std()),
        "length/mean": float(lengths.mean()),
        "length/p50": float(np.percentile(lengths, 50)),
        "length/p99": float(np.percentile(lengths, 99)),
        "length/max": int(lengths.max()),
        "truncated": float(np.mean(truncated)),
        "tokens/trained": num_loss_tokens,
    }
    return record | _lengths_by_outcome(trajectories, lengths) | _part_means(trajectories)


def _lengths_by_outcome(trajectories: Sequence[Trajectory], lengths: np.ndarray) -> Record:
    right = np.array([is_right(one.unshaped_reward, one.reward_parts) for one in trajectories])
    record: Record = {}
    if right.any():
        record["length/right_mean"] = float(lengths[right].mean())
    if not right.all():
        record["length/wrong_mean"] = float(lengths[~right].mean())
    return record


def _part_means(trajectories: Sequence[Trajectory]) -> Record:
    """Compute reward/<part>, in the order in which parts are first named."""
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for part, value in trajectory.reward_parts.items():
            values.setdefault(part, []).append(value)
    return {part_metric(part): float(np.mean(numbers)) for part, numbers in values.items()}
