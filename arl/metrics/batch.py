"""Compute what a step's batch says about itself: rewards, lengths, and how old it is."""

from collections.abc import Sequence

import numpy as np

from arl.metrics.names import Record
from arl.types import Batch


class Ages:
    """Compute three ages of a batch when step v consumes it: of groups since dispatch and arrival, and of tokens.

    Trajectories without a loss token have no token age. If no trajectory of the batch has one, the means and maxima
    of token ages are undefined, and `metrics` leaves them out.
    """

    def __init__(self, batch: Batch) -> None:
        v = batch.version
        self._dispatch = [v - group.dispatch_version for group in batch.groups]
        self._queue = [v - group.arrival_version for group in batch.groups]
        trajectories = [t for group in batch.groups for t in group.trajectories]
        ages = [v - t.policy_versions[t.loss_mask] for t in trajectories if t.loss_mask.any()]
        self._staleness = [int(age.max()) for age in ages]
        self.num_spanning = sum(int(age.max() != age.min()) for age in ages)
        self.tokens: list[int] = np.bincount(np.concatenate(ages)).tolist() if ages else []  # loss tokens by age

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


def _group_ages(name: str, ages: Sequence[int]) -> Record:
    return {
        f"{name}/mean": float(np.mean(ages)),
        f"{name}/max": max(ages),
        f"{name}/histogram": np.bincount(ages).tolist(),
    }


def rollout_metrics(batch: Batch) -> Record:
    """Compute rewards and lengths of the trajectories that the step trains."""
    trajectories = [t for group in batch.groups for t in group.trajectories]
    rewards = np.array([t.reward for t in trajectories])
    lengths = np.array([int(t.loss_mask.sum()) for t in trajectories])
    return {
        "reward/trained_mean": float(rewards.mean()),
        "reward/trained_std": float(rewards.std()),
        "length/mean": float(lengths.mean()),
        "length/p99": float(np.percentile(lengths, 99)),
        "truncated": float(np.mean([t.truncated for t in trajectories])),
        "tokens/trained": int(lengths.sum()),
    }
