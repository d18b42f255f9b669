"""Take from the trajectories of a batch what the loss needs of each, and add its advantages. Torch-free.

Batch ─► EpisodeColumns ─► Advantage.compute ─► LossSequence for each trajectory, group by group
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from arl.errors import InputError
from arl.train.algorithms.advantage import Advantage, EpisodeColumns
from arl.types import NOT_SAMPLED, Batch, Trajectory


class LossSequence(Struct, frozen=True):
    """Holds what the loss needs of one trajectory: L tokens, n of them in the loss."""

    token_ids: np.ndarray  # (L,) int32
    loss_at: np.ndarray  # (n,) int, index of each loss token, ascending, > 0
    behavior_logprobs: np.ndarray  # (n,) float32
    policy_versions: np.ndarray  # (n,) int32
    advantages: np.ndarray  # (n,) float32
    reference_logprobs: np.ndarray | None = None  # (n,) float32, of a frozen model; None: nothing computes them yet
    values: np.ndarray | None = None  # (n,) float32, a critic's; None: nothing computes them yet
    places: np.ndarray | None = None  # (n,) int32, of each loss token among those of the step; None: nobody asks


def loss_sequences(batch: Batch, advantage: Advantage, places: bool = False) -> list[list[LossSequence]]:
    """Build the loss sequences of a batch, group by group; with `places`, number its loss tokens.

    Raises:
        InputError: the advantage returned another shape than it declares, or a number that is not finite.
    """
    trajectories = [t for group in batch.groups for t in group.trajectories]
    loss_at = [np.flatnonzero(t.loss_mask) for t in trajectories]
    rewards = [t.reward for t in trajectories]
    group_sizes = [len(group.trajectories) for group in batch.groups]
    num_loss_tokens = [len(at) for at in loss_at]
    episodes = EpisodeColumns(
        rewards=np.array(rewards, np.float64),
        group_sizes=np.array(group_sizes, np.int64),
        num_loss_tokens=np.array(num_loss_tokens, np.int64),
    )
    per_token = advantages_per_token(advantage, episodes)
    places_of = _places(num_loss_tokens) if places else [None] * len(trajectories)
    sequences = list(map(_loss_sequence, trajectories, loss_at, per_token, places_of))
    groups = []
    for size in group_sizes:
        groups.append(sequences[:size])
        del sequences[:size]
    return groups


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
    return np.split(numbers, np.cumsum(lengths)[:-1])


def _places(lengths: Sequence[int]) -> list[np.ndarray]:
    """Number the loss tokens of a step: for each trajectory, (n,) int32 of its own."""
    numbers = np.arange(sum(lengths), dtype=np.int32)
    return np.split(numbers, np.cumsum(lengths)[:-1])


def _loss_sequence(
    trajectory: Trajectory,
    loss_at: np.ndarray,
    advantages: np.ndarray,
    places: np.ndarray | None,
) -> LossSequence:
    assert not len(loss_at) or loss_at[0] > 0, "the first token of a trajectory is never sampled"
    versions = trajectory.policy_versions[loss_at]
    assert (versions != NOT_SAMPLED).all(), "a loss token that no policy sampled"
    return LossSequence(
        token_ids=trajectory.token_ids,
        loss_at=loss_at,
        behavior_logprobs=trajectory.behavior_logprobs[loss_at],
        policy_versions=versions,
        advantages=advantages,
        places=places,
    )
