"""Compute the metrics of a step's batch (rewards, lengths, ages), and of the groups that ended since the last step."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from arl.metrics.names import METRICS, OF_ENV, OF_PART, OF_SOURCE, Record
from arl.types import CORRECT, REJECTED, Batch, Trajectory, TrajectoryGroup

OF_EACH_SOURCE = {  # metric of a source -> of the batch, computed over the groups of the source
    "reward": "reward/trained_mean",
    "length": "length/mean",
    "token_age": "token_age/mean",
    "staleness_max": "staleness/max",
}


class BatchAges(NamedTuple):
    """Hold how old a batch is when its step begins."""

    tokens: list[int]  # loss tokens of age 0, 1, …; empty: no trajectory has one, and metrics of their ages are absent
    num_spanning: int  # trajectories sampled by two or more versions
    metrics: Record  # staleness/…, token_age/…, versions/…, dispatch_age/… and queue_age/…


def ages_of(batch: Batch) -> BatchAges:
    """Compute the ages of groups since dispatch and arrival, and of loss tokens."""
    masked = [(one.policy_versions, one.loss_mask) for one in _trajectories(batch) if one.loss_mask.any()]
    token_ages = [batch.version - versions[mask] for versions, mask in masked]
    tokens: list[int] = np.bincount(np.concatenate(token_ages)).tolist() if token_ages else []
    num_spanning = sum(bool(ages.max() > ages.min()) for ages in token_ages)
    metrics: Record = {
        "token_age/histogram": tokens,
        "dispatch_age/mean": float(np.mean([batch.version - group.dispatch_version for group in batch.groups])),
        "queue_age/mean": float(np.mean([batch.version - group.arrival_version for group in batch.groups])),
    }
    if tokens:
        num_tokens = sum(tokens)
        staleness = [int(ages.max()) for ages in token_ages]
        metrics["staleness/max"] = max(staleness)
        metrics["staleness/mean"] = float(np.mean(staleness))
        metrics["token_age/mean"] = sum(age * count for age, count in enumerate(tokens)) / num_tokens
        metrics["token_age/stale_fraction"] = 1 - tokens[0] / num_tokens
        metrics["versions/spanning_fraction"] = num_spanning / len(token_ages)
    return BatchAges(tokens, num_spanning, metrics)


def _trajectories(batch: Batch) -> list[Trajectory]:
    return [trajectory for group in batch.groups for trajectory in group.trajectories]


def batch_metrics(batch: Batch, consumed_at: float) -> Record:
    """Compute rewards, lengths and waits of what the step trains.

    Args:
        consumed_at: the clock when the step began with the batch, seconds.
    """
    episodes = [episode for group in batch.groups for episode in group.episodes]
    firsts = [episode[0] for episode in episodes]  # rewards are those of the episode
    rewards = np.array([first.reward for first in firsts])
    lengths = np.array([sum(branch.num_sampled for branch in episode) for episode in episodes])
    right = np.array([is_right(first.unshaped_reward, first.reward_parts) for first in firsts])
    record: Record = {
        "reward/trained_mean": float(rewards.mean()),
        "reward/trained_std": float(rewards.std()),
        "length/mean": float(lengths.mean()),
        "length/p50": float(np.percentile(lengths, 50)),
        "length/p99": float(np.percentile(lengths, 99)),
        "length/max": int(lengths.max()),
        "truncated": float(np.mean([first.truncated for first in firsts])),
        "tokens/trained": sum(int(trajectory.loss_mask.sum()) for trajectory in _trajectories(batch)),
        "groups/generation_s": float(np.mean([group.arrival_time - group.dispatch_time for group in batch.groups])),
        "groups/queue_s": float(np.mean([consumed_at - group.arrival_time for group in batch.groups])),
    }
    if right.any():
        record["length/right_mean"] = float(lengths[right].mean())
    if not right.all():
        record["length/wrong_mean"] = float(lengths[~right].mean())
    for part, mean in _means([first.reward_parts for first in firsts]).items():
        name = f"{OF_PART}{part}"
        record[f"{name}_" if name in METRICS else name] = mean  # what arl logs keeps its name
    measures = _means([first.measures for first in firsts])
    return record | {f"{OF_ENV}{name}": mean for name, mean in measures.items()}


def _means(numbers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each name over those that have it, in the order in which they are first named."""
    values = defaultdict[str, list[float]](list)
    for of_one in numbers:
        for name, value in of_one.items():
            values[name].append(value)
    return {name: float(np.mean(of_name)) for name, of_name in values.items()}


def source_metrics(batch: Batch) -> Record:
    """Compute what the step trains of each of several sources."""
    of_source = defaultdict[str, list[TrajectoryGroup]](list)
    for group in batch.groups:
        if group.problem.source:
            of_source[group.problem.source].append(group)
    record: Record = {}
    for source, groups in sorted(of_source.items()):
        own = Batch(batch.version, tuple(groups))
        found = batch_metrics(own, consumed_at=0.0) | ages_of(own).metrics
        values = {name: found[of_batch] for name, of_batch in OF_EACH_SOURCE.items() if of_batch in found}
        values["share"] = len(groups) / len(batch.groups)
        values["right"] = pass_rate(_trajectories(own))
        record |= {f"{OF_SOURCE}{source}/{name}": value for name, value in values.items()}
    return record


def pass_rate(trajectories: Sequence[Trajectory]) -> float:
    """Return the share of right episodes."""
    firsts = [one for one in trajectories if one.branch == 0]
    return float(np.mean([is_right(first.unshaped_reward, first.reward_parts) for first in firsts]))


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
        all_episodes = group.episodes
        episodes = [first for first, *_ in all_episodes if not math.isnan(first.reward)]
        is_scored = bool(episodes) and len(episodes) == len(all_episodes)
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
            record["groups/equal_rewards"] = self.equal / self.scored
        return record
