"""What a step's batch says about itself: rewards, lengths, and how old it is."""

from collections.abc import Sequence

import numpy as np

from arl.metrics.names import Record
from arl.types import Batch


class Ages:
    """Three ages of a batch at its consumption by step v: of groups since dispatch and since arrival, and of tokens."""

    def __init__(self, batch: Batch) -> None:
        v = batch.version
        self._dispatch = [v - group.dispatch_version for group in batch.groups]
        self._queue = [v - group.arrival_version for group in batch.groups]
        ages = [v - t.policy_versions[t.loss_mask] for g in batch.groups for t in g.trajectories if t.loss_mask.any()]
        self._staleness = [int(a.max()) for a in ages]
        self._num_trajectories = len(ages)
        self.num_spanning = sum(int(a.max() != a.min()) for a in ages)
        self.tokens: list[int] = np.bincount(np.concatenate(ages)).tolist()  # loss tokens by age

    def metrics(self) -> Record:
        num_tokens = sum(self.tokens)
        return {
            "staleness/max": max(self._staleness),
            "staleness/mean": float(np.mean(self._staleness)),
            "token_age/mean": sum(age * count for age, count in enumerate(self.tokens)) / num_tokens,
            "token_age/histogram": self.tokens,
            "token_age/stale_fraction": 1 - self.tokens[0] / num_tokens,
            "versions/spanning_fraction": self.num_spanning / self._num_trajectories,
            **_group_ages("dispatch_age", self._dispatch),
            **_group_ages("queue_age", self._queue),
        }


def _group_ages(name: str, ages: Sequence[int]) -> Record:
    return {
        f"{name}/mean": float(np.mean(ages)),
        f"{name}/max": max(ages),
        f"{name}/histogram": np.bincount(ages).tolist(),
    }


def rollout_metrics(batch: Batch) -> Record:
    trajectories = [t for group in batch.groups for t in group.trajectories]
    rewards = np.array([t.reward for t in trajectories])
    lengths = np.array([int(t.loss_mask.sum()) for t in trajectories])
    return {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "length/mean": float(lengths.mean()),
        "length/p99": float(np.percentile(lengths, 99)),
        "truncated": float(np.mean([t.truncated for t in trajectories])),
        "tokens/trained": int(lengths.sum()),
    }
