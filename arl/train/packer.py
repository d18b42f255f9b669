"""From a batch to what each rank computes. Torch-free: the controller packs, a rank receives only its shard.

    Batch ─► advantages ─► minibatches (whole groups, fixed here) ─► bundles ─► micro-batches ─► one Shard per rank

A bundle is what is left of a group: trajectories whose advantage is exactly 0 have no gradient and are left out
(the loss is still divided by the number of tokens before that). A micro-batch is stored as a prefix tree
(arl.models.prefix_tree), so that a token which several trajectories share in the same context, the whole prompt first
of all, is computed once; bundles keep those that share most together.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from arl.data.model_limits import Flops
from arl.errors import InputError
from arl.models.prefix_tree import PrefixTree, how_many_fit, prefix_tree
from arl.train.algorithms.grpo import grpo_advantages
from arl.train.balancer import balance
from arl.types import NOT_SAMPLED, Batch, Trajectory

BY_TOKENS = Flops(token=1.0, key=0.0, score=0.0)  # for one rank, which waits for nobody


class MicroBatch(Struct, frozen=True):
    """One forward and backward: T tokens in S segments, M scored positions, N loss tokens."""

    token_ids: np.ndarray  # (T,) int32
    position_ids: np.ndarray  # (T,) int32
    query_offsets: np.ndarray  # (S+1,) int32, segment s owns tokens query_offsets[s]:query_offsets[s+1]
    key_offsets: np.ndarray  # (S+1,) int32 into key_indices
    key_indices: np.ndarray  # (K,) int32 pack index of every token a segment sees, its own last
    score_positions: np.ndarray  # (M,) int32 pack index whose hidden state predicts the target
    score_targets: np.ndarray  # (M,) int32 token
    loss_scores: np.ndarray  # (N,) int32 ascending, the score of each loss token; equal continuations share one
    behavior_logprobs: np.ndarray  # (N,) float32
    policy_versions: np.ndarray  # (N,) int32
    advantages: np.ndarray  # (N,) float32
    sequences: np.ndarray  # (N,) int32, the trajectory of each loss token, 0, 1, … in this pack


class Minibatch(Struct, frozen=True):
    """One optimizer update."""

    micro_batches: tuple[MicroBatch, ...]  # this rank's; every rank has as many, at least one
    loss_tokens: int  # of all ranks, before trajectories without gradient were left out
    loss_sequences: int  # likewise: trajectories with loss tokens


class Shard(Struct, frozen=True):
    """One rank's part of the step that turns version `version` into version + 1."""

    version: int
    minibatches: tuple[Minibatch, ...]


class LossSequence(Struct, frozen=True):
    """What the loss needs of one trajectory: L tokens, n of them in the loss."""

    token_ids: np.ndarray  # (L,) int32
    loss_at: np.ndarray  # (n,) int, index of each loss token, ascending, > 0
    behavior_logprobs: np.ndarray  # (n,) float32
    policy_versions: np.ndarray  # (n,) int32
    advantage: float


def pack_batch(
    batch: Batch, minibatches: int, capacity: int, ranks: int, flops: Flops = BY_TOKENS
) -> tuple[tuple[Shard, ...], dict[str, float]]:
    """Advantages, minibatches, micro-batches and shards of one step, with the packing metrics.

    Minibatch m takes groups m, m + minibatches, …: batches are ordered by deadline, so each sees every age.

    Args:
        capacity: tokens of a micro-batch.
        flops: of the model, by which micro-batches are balanced over ranks.

    Raises:
        InputError: a trajectory longer than `capacity`, or groups that `minibatches` does not divide.
    """
    if len(batch.groups) % minibatches:
        raise InputError(f"train.minibatches {minibatches} must divide the {len(batch.groups)} groups of a step")
    groups = _with_advantages(batch)
    shards: list[list[Minibatch]] = [[] for _ in range(ranks)]
    for m in range(minibatches):
        members = groups[m::minibatches]
        lengths = [len(s.loss_at) for group in members for s in group]
        kept = [[s for s in group if s.advantage != 0.0] for group in members]
        for shard, micro_batches in zip(shards, pack_groups(kept, capacity, ranks, flops), strict=True):
            shard.append(Minibatch(micro_batches, sum(lengths), sum(n > 0 for n in lengths)))
    packed = tuple(Shard(batch.version, tuple(shard)) for shard in shards)
    return packed, _report(batch, groups, packed, capacity, flops)


def pack_groups(
    groups: Sequence[Sequence[LossSequence]], capacity: int, ranks: int, flops: Flops = BY_TOKENS
) -> list[tuple[MicroBatch, ...]]:
    """The micro-batches of one minibatch, for each rank: equally many, at least one, heaviest first.

    Raises:
        InputError: a sequence longer than `capacity`.
    """
    bundles = [bundle for group in groups for bundle in _bundles(group, capacity)]
    counts = [_counts(bundle) for bundle in bundles]
    sizes = np.array([tokens for tokens, _, _ in counts], np.int64)
    work = np.array([flops.of(*count) for count in counts], np.float64)
    shares = balance(sizes, work, capacity, ranks)
    return [tuple(_join([s for i in members for s in bundles[i]]) for members in share) for share in shares]


def _with_advantages(batch: Batch) -> list[list[LossSequence]]:
    sizes = np.array([len(group.trajectories) for group in batch.groups])
    rewards = np.array([t.reward for group in batch.groups for t in group.trajectories])
    advantages = iter(grpo_advantages(rewards, sizes).tolist())
    return [[_loss_sequence(t, next(advantages)) for t in group.trajectories] for group in batch.groups]


def _loss_sequence(trajectory: Trajectory, advantage: float) -> LossSequence:
    loss_at = np.flatnonzero(trajectory.loss_mask)
    assert not len(loss_at) or loss_at[0] > 0, "the first token of a trajectory is never sampled"
    versions = trajectory.policy_versions[loss_at]
    assert (versions != NOT_SAMPLED).all(), "a loss token that no policy sampled"
    return LossSequence(
        token_ids=trajectory.token_ids,
        loss_at=loss_at,
        behavior_logprobs=trajectory.behavior_logprobs[loss_at],
        policy_versions=versions,
        advantage=advantage if len(loss_at) else 0.0,
    )


def _stored(sequence: LossSequence) -> np.ndarray:
    """(L,) int32, what must be computed: nothing asks for the hidden state of the last loss token."""
    return sequence.token_ids[: sequence.loss_at[-1]]


def _bundles(group: Sequence[LossSequence], capacity: int) -> Iterator[list[LossSequence]]:
    """The group, cut where its prefix tree outgrows `capacity`; every part carries the prompt again."""
    longest = max((len(_stored(s)) for s in group), default=0)
    if longest > capacity:
        raise InputError(
            f"a trajectory of {longest} tokens does not fit train.capacity {capacity}: raise the capacity "
            "or lower rollout.max_new_tokens"
        )
    rest = sorted(group, key=lambda s: _stored(s).tobytes())
    while rest:
        count = how_many_fit([_stored(s) for s in rest], capacity)
        yield rest[:count]
        rest = rest[count:]


def _counts(bundle: Sequence[LossSequence]) -> tuple[int, int, int]:
    """Tokens, keys that they see, and scores, of which equal continuations will share some."""
    tree = prefix_tree([_stored(s) for s in bundle])
    return len(tree.token_ids), keys_seen(tree), sum(len(s.loss_at) for s in bundle)


def keys_seen(tree: PrefixTree | MicroBatch) -> int:
    """Pairs of a token and a key it sees: the q tokens of a segment with k keys see k − q + 1, …, k of them."""
    q, k = (np.diff(offsets).astype(np.int64) for offsets in (tree.query_offsets, tree.key_offsets))
    return int((q * k - q * (q - 1) // 2).sum())


def _join(sequences: list[LossSequence]) -> MicroBatch:
    """One pack; without sequences, a single token that nothing trains on, for ranks that must compute in step."""
    tree = prefix_tree([_stored(s) for s in sequences] or [np.zeros(1, np.int32)])
    predecessors = [tree.paths[i, s.loss_at - 1] for i, s in enumerate(sequences)]
    pairs = _joined(predecessors, np.int64) << 32 | _joined([s.token_ids[s.loss_at] for s in sequences], np.int32)
    scored, loss_scores = np.unique(pairs, return_inverse=True)
    by_score = np.argsort(loss_scores, kind="stable")  # so that a range of scores has a range of loss tokens
    counts = [len(s.loss_at) for s in sequences]
    return MicroBatch(
        token_ids=tree.token_ids,
        position_ids=tree.position_ids,
        query_offsets=tree.query_offsets,
        key_offsets=tree.key_offsets,
        key_indices=tree.key_indices,
        score_positions=(scored >> 32).astype(np.int32),
        score_targets=(scored & 0xFFFFFFFF).astype(np.int32),
        loss_scores=loss_scores[by_score].astype(np.int32),
        behavior_logprobs=_joined([s.behavior_logprobs for s in sequences], np.float32)[by_score],
        policy_versions=_joined([s.policy_versions for s in sequences], np.int32)[by_score],
        advantages=np.repeat(np.array([s.advantage for s in sequences], np.float32), counts)[by_score],
        sequences=np.repeat(np.arange(len(sequences), dtype=np.int32), counts)[by_score],
    )


def _joined(arrays: list[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype)


def _report(
    batch: Batch, groups: list[list[LossSequence]], shards: tuple[Shard, ...], capacity: int, flops: Flops
) -> dict[str, float]:
    sequences = [s for group in groups for s in group]
    packs = [[mb for minibatch in shard.minibatches for mb in minibatch.micro_batches] for shard in shards]
    computed = sum(len(mb.token_ids) for share in packs for mb in share)
    work = np.array(
        [[flops.of(len(mb.token_ids), keys_seen(mb), len(mb.score_targets)) for mb in share] for share in packs]
    )
    given = sum(len(t.token_ids) for group in batch.groups for t in group.trajectories)
    return {
        "advantage/zero_fraction": sum(s.advantage == 0.0 for s in sequences) / len(sequences),
        "packing/balance": float(work.max(axis=0).sum() / work.sum(axis=1).mean()),
        "packing/efficiency": computed / (capacity * work.size),
        "packing/saved_fraction": 1 - computed / given,
        "tokens/trained": float(sum(len(s.loss_at) for s in sequences)),
    }
