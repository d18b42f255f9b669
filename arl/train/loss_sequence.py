"""Take from the trajectories of a batch what the loss needs of each, and add its advantages. Torch-free.

Batch ─► EpisodeColumns ─► Advantage.compute ─► LossSequence for each trajectory, group by group
"""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from arl.errors import InputError
from arl.train.algorithms.advantage import Advantage, EpisodeColumns
from arl.types import NOT_SAMPLED, Batch, Trajectory


class LossSequence(Struct, frozen=True):
    """Hold what the loss needs of one trajectory: L tokens, n of them in the loss."""

    token_ids: np.ndarray  # (L,) int32
    loss_at: np.ndarray  # (n,) int, index of each loss token, ascending, > 0
    behavior_logprobs: np.ndarray  # (n,) float32
    policy_versions: np.ndarray  # (n,) int32
    advantages: np.ndarray  # (n,) float32
    reference_logprobs: np.ndarray | None = None  # (n,) float32, of a frozen model; None: nothing computes them yet
    values: np.ndarray | None = None  # (n,) float32, a critic's; None: nothing computes them yet
    places: np.ndarray | None = None  # (n,) int32, of each loss token among those of the step; None: nobody asks

    @property
    def has_advantage(self) -> bool:
        """Return whether an advantage is not 0. The first one usually answers, and is quicker to look at than all."""
        if not len(self.advantages):
            return False
        return bool(self.advantages[0]) or bool(self.advantages.any())


def loss_sequences(batch: Batch, advantage: Advantage, places: bool = False) -> list[list[LossSequence]]:
    """Build the loss sequences of a batch, group by group; with `places`, number its loss tokens.

    Raises:
        InputError: the advantage returned another shape than it declares, or a number that is not finite.
    """
    trajectories = [t for group in batch.groups for t in group.trajectories]
    group_sizes = [len(group.trajectories) for group in batch.groups]
    rewards = [t.reward for t in trajectories]
    tokens = _loss_tokens(trajectories)
    episodes = EpisodeColumns(
        rewards=np.array(rewards, np.float64),
        group_sizes=np.array(group_sizes, np.int64),
        num_loss_tokens=tokens.counts,
    )
    columns = [
        _split(tokens.loss_at, tokens.counts),
        _split(tokens.behavior_logprobs, tokens.counts),
        _split(tokens.policy_versions, tokens.counts),
        advantages_per_token(advantage, episodes),
        _places(tokens.counts) if places else [None] * len(trajectories),
    ]
    groups: list[list[LossSequence]] = []
    rows = zip(trajectories, *columns, strict=True)
    for size in group_sizes:
        groups.append([_loss_sequence(*row) for row in islice(rows, size)])
    return groups


class _LossTokens(NamedTuple):
    """Hold the T loss tokens of all trajectories of a batch, one trajectory's after the other's."""

    counts: np.ndarray  # (N,) int64, of each trajectory, summing to T
    loss_at: np.ndarray  # (T,) int32, index in its own trajectory
    behavior_logprobs: np.ndarray  # (T,) float32
    policy_versions: np.ndarray  # (T,) int32


def _loss_tokens(trajectories: Sequence[Trajectory]) -> _LossTokens:
    """Find the loss tokens of all trajectories at once, because there may be ten thousand of them."""
    lengths = [len(t.token_ids) for t in trajectories]
    ends = np.cumsum(lengths)
    starts = ends - lengths
    at = np.flatnonzero(np.concatenate([t.loss_mask for t in trajectories]))
    counts = np.searchsorted(at, ends) - np.searchsorted(at, starts)
    loss_at = at - np.repeat(starts, counts)
    versions = np.concatenate([t.policy_versions for t in trajectories])[at]
    assert (loss_at > 0).all(), "the first token of a trajectory is never sampled"
    assert (versions != NOT_SAMPLED).all(), "a loss token that no policy sampled"
    return _LossTokens(
        counts=counts,
        loss_at=loss_at.astype(np.int32),
        behavior_logprobs=np.concatenate([t.behavior_logprobs for t in trajectories])[at],
        policy_versions=versions,
    )


def advantages_per_token(advantage: Advantage, episodes: EpisodeColumns) -> list[np.ndarray]:
    """Compute the advantages of a step: for each episode, (n,) float32 of its loss tokens.

    Raises:
        InputError: `advantage` returned another shape than it declares, or a number that is not finite.
    """
    computed = np.asarray(advantage.compute(episodes))
    lengths = episodes.num_loss_tokens
    expected = len(lengths) if advantage.per == "trajectory" else int(lengths.sum())
    if computed.shape != (expected,):
        raise InputError(
            f"advantage.kind {advantage.kind}: compute returned an array of shape {computed.shape}, and it declares "
            f"one number per {advantage.per}, which is ({expected},) in this step"
        )
    if not np.isfinite(computed).all():
        raise InputError(f"advantage.kind {advantage.kind}: compute returned numbers that are not finite")
    numbers = computed.astype(np.float32)
    if advantage.per == "trajectory":
        numbers = np.repeat(numbers, lengths)
    return _split(numbers, lengths)


def _places(counts: np.ndarray) -> list[np.ndarray]:
    """Number the loss tokens of a step: for each trajectory, (n,) int32 of its own."""
    numbers = np.arange(counts.sum(), dtype=np.int32)
    return _split(numbers, counts)


def _split(column: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Cut (T,) into parts of `counts` (N,) elements. np.split takes ten times as long."""
    ends = np.cumsum(counts)
    starts = ends - counts
    return [column[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _loss_sequence(
    trajectory: Trajectory,
    loss_at: np.ndarray,
    behavior_logprobs: np.ndarray,
    policy_versions: np.ndarray,
    advantages: np.ndarray,
    places: np.ndarray | None,
) -> LossSequence:
    return LossSequence(
        token_ids=trajectory.token_ids,
        loss_at=loss_at,
        behavior_logprobs=behavior_logprobs,
        policy_versions=policy_versions,
        advantages=advantages,
        places=places,
    )
