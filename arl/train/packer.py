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

from arl.errors import InputError
from arl.models.prefix_tree import how_many_fit, prefix_tree
from arl.train.advantages import grpo_advantages
from arl.types import NOT_SAMPLED, Batch, Trajectory


class MicroBatch(Struct, frozen=True):
    """One forward and backward: T tokens in S segments, M scored positions, N loss tokens."""

    token_ids: np.ndarray  # (T,) int32
    position_ids: np.ndarray  # (T,) int32
    query_offsets: np.ndarray  # (S+1,) int32, segment s owns tokens query_offsets[s]:query_offsets[s+1]
    key_offsets: np.ndarray  # (S+1,) int32 into key_indices
    key_indices: np.ndarray  # (K,) int32 pack index of every token a segment sees, its own last
    score_positions: np.ndarray  # (M,) int32 pack index whose hidden state predicts the target
    score_targets: np.ndarray  # (M,) int32 token
    loss_scores: np.ndarray  # (N,) int32 the score of each loss token; equal continuations share one
    behavior_logprobs: np.ndarray  # (N,) float32
    policy_versions: np.ndarray  # (N,) int32
    advantages: np.ndarray  # (N,) float32


class Minibatch(Struct, frozen=True):
    """One optimizer update."""

    micro_batches: tuple[MicroBatch, ...]  # this rank's; every rank has as many, at least one
    loss_tokens: int  # of all ranks, before trajectories without gradient were left out


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


def pack_batch(batch: Batch, minibatches: int, capacity: int, ranks: int) -> tuple[tuple[Shard, ...], dict[str, float]]:
    """Advantages, minibatches, micro-batches and shards of one step, with the packing metrics.

    Minibatch m takes groups m, m + minibatches, …: batches are ordered by deadline, so each sees every age.

    Raises:
        InputError: a trajectory longer than `capacity`, or groups that `minibatches` does not divide.
    """
    if len(batch.groups) % minibatches:
        raise InputError(f"train.minibatches {minibatches} must divide the {len(batch.groups)} groups of a step")
    groups = _with_advantages(batch)
    shards: list[list[Minibatch]] = [[] for _ in range(ranks)]
    for m in range(minibatches):
        members = groups[m::minibatches]
        loss_tokens = sum(len(s.loss_at) for group in members for s in group)
        kept = [[s for s in group if s.advantage != 0.0] for group in members]
        for shard, micro_batches in zip(shards, pack_groups(kept, capacity, ranks), strict=True):
            shard.append(Minibatch(micro_batches, loss_tokens))
    packed = tuple(Shard(batch.version, tuple(shard)) for shard in shards)
    return packed, _report(batch, groups, packed, capacity)


def pack_groups(groups: Sequence[Sequence[LossSequence]], capacity: int, ranks: int) -> list[tuple[MicroBatch, ...]]:
    """The micro-batches of one minibatch, for each rank: equally many, at least one, heaviest first.

    Raises:
        InputError: a sequence longer than `capacity`.
    """
    bundles = [bundle for group in groups for bundle in _bundles(group, capacity)]
    sizes = [len(prefix_tree([_stored(s) for s in bundle]).token_ids) for bundle in bundles]
    bins = _fill(sizes, capacity, ranks)
    loads = [sum(sizes[i] for i in members) for members in bins]
    shares: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    work = [0] * ranks
    heaviest_first = sorted(range(len(bins)), key=lambda b: -loads[b])
    for start in range(0, len(bins), ranks):
        least_loaded = sorted(range(ranks), key=lambda r: work[r])
        for rank, b in zip(least_loaded, heaviest_first[start : start + ranks], strict=True):
            shares[rank].append(_join([s for i in bins[b] for s in bundles[i]]))
            work[rank] += loads[b]
    return [tuple(share) for share in shares]


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


def _fill(sizes: list[int], capacity: int, ranks: int) -> list[list[int]]:
    """Bins of at most `capacity`: a multiple of `ranks` of them, as few as first-fit-decreasing needs.

    First-fit-decreasing finds how many; the largest item then goes to the emptiest bin, which evens them out. Where
    that does not fit, the first-fit bins stand and empty ones complete them.
    """
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    packed: list[list[int]] = []
    room = np.zeros(len(sizes) + 1, np.int64)
    for i in order:
        b = int(np.argmax(room[: len(packed)] >= sizes[i])) if packed else 0
        if not packed or room[b] < sizes[i]:
            b = len(packed)
            packed.append([])
            room[b] = capacity
        packed[b].append(i)
        room[b] -= sizes[i]
    count = max(1, -(-len(packed) // ranks)) * ranks
    even: list[list[int]] = [[] for _ in range(count)]
    load = np.zeros(count, np.int64)
    for i in order:
        b = int(load.argmin())
        even[b].append(i)
        load[b] += sizes[i]
    return even if load.max() <= capacity else packed + [[] for _ in range(count - len(packed))]


def _join(sequences: list[LossSequence]) -> MicroBatch:
    """One pack; without sequences, a single token that nothing trains on, for ranks that must compute in step."""
    tree = prefix_tree([_stored(s) for s in sequences] or [np.zeros(1, np.int32)])
    predecessors = [tree.paths[i, s.loss_at - 1] for i, s in enumerate(sequences)]
    pairs = _joined(predecessors, np.int64) << 32 | _joined([s.token_ids[s.loss_at] for s in sequences], np.int32)
    scored, loss_scores = np.unique(pairs, return_inverse=True)
    counts = [len(s.loss_at) for s in sequences]
    return MicroBatch(
        token_ids=tree.token_ids,
        position_ids=tree.position_ids,
        query_offsets=tree.query_offsets,
        key_offsets=tree.key_offsets,
        key_indices=tree.key_indices,
        score_positions=(scored >> 32).astype(np.int32),
        score_targets=(scored & 0xFFFFFFFF).astype(np.int32),
        loss_scores=loss_scores.astype(np.int32),
        behavior_logprobs=_joined([s.behavior_logprobs for s in sequences], np.float32),
        policy_versions=_joined([s.policy_versions for s in sequences], np.int32),
        advantages=np.repeat(np.array([s.advantage for s in sequences], np.float32), counts),
    )


def _joined(arrays: list[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype)


def _report(
    batch: Batch, groups: list[list[LossSequence]], shards: tuple[Shard, ...], capacity: int
) -> dict[str, float]:
    sequences = [s for group in groups for s in group]
    packs = [mb for shard in shards for minibatch in shard.minibatches for mb in minibatch.micro_batches]
    computed = sum(len(mb.token_ids) for mb in packs)
    given = sum(len(t.token_ids) for group in batch.groups for t in group.trajectories)
    return {
        "advantage/zero_fraction": sum(s.advantage == 0.0 for s in sequences) / len(sequences),
        "packing/efficiency": computed / (capacity * len(packs)),
        "packing/saved_fraction": 1 - computed / given,
        "tokens/trained": float(sum(len(s.loss_at) for s in sequences)),
    }
