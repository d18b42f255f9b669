"""From a batch to what each rank computes. Torch-free: the controller packs, a rank receives only its shard.

    Batch ─► advantages ─► minibatches (whole groups, fixed here) ─► bundles ─► micro-batches ─► one Shard per rank

A bundle is what is left of a group: trajectories whose advantage is exactly 0 have no gradient and are left out
(the loss is still divided by the number of tokens before that), and the rest are stored as a prefix tree, so that a
token which several trajectories share in the same context, the whole prompt first of all, is computed once. The
last loss token of a trajectory is only a target: nothing asks for its hidden state.

    trajectories  P P P a b $      stored  P P P a b      segments  [P P P a b]  sees itself
                  P P P a c $                      c                [c]          sees P P P a c
"""

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from arl.errors import InputError
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
    bins = _fill([b.size for b in bundles], capacity, ranks)
    loads = [sum(bundles[i].size for i in members) for members in bins]
    shares: list[list[MicroBatch]] = [[] for _ in range(ranks)]
    work = [0] * ranks
    heaviest_first = sorted(range(len(bins)), key=lambda b: -loads[b])
    for start in range(0, len(bins), ranks):
        least_loaded = sorted(range(ranks), key=lambda r: work[r])
        for rank, b in zip(least_loaded, heaviest_first[start : start + ranks], strict=True):
            shares[rank].append(_join([bundles[i] for i in bins[b]]))
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


class _Bundle:
    """Sequences of one group as a prefix tree; indices count from the bundle's first token."""

    def __init__(self) -> None:
        self.size = 0
        self.sequences: list[LossSequence] = []
        self.predecessors: list[np.ndarray] = []  # of each sequence, (n,) the token that predicts each loss token
        self.tokens: list[np.ndarray] = []
        self.positions: list[np.ndarray] = []
        self.keys: list[np.ndarray] = []  # of each segment
        self.queries: list[int] = []
        self._path = np.empty(0, np.int32)  # tokens of the last sequence
        self._index = np.empty(0, np.int32)  # and where they are

    def new_tokens(self, stored: np.ndarray) -> int:
        return len(stored) - _common(self._path, stored)

    def add(self, sequence: LossSequence, stored: np.ndarray) -> None:
        """Sequences come in lexicographic order, so the last one shares the longest prefix."""
        shared = _common(self._path, stored)
        new = len(stored) - shared
        own = np.arange(self.size, self.size + new, dtype=np.int32)
        self._path, self._index = stored, np.concatenate([self._index[:shared], own])
        if new:
            self.tokens.append(stored[shared:])
            self.positions.append(np.arange(shared, len(stored), dtype=np.int32))
            self.keys.append(self._index)
            self.queries.append(new)
            self.size += new
        self.sequences.append(sequence)
        self.predecessors.append(self._index[sequence.loss_at - 1])


def _common(a: np.ndarray, b: np.ndarray) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def _bundles(group: Sequence[LossSequence], capacity: int) -> Iterator[_Bundle]:
    """The group's prefix tree, cut where it outgrows `capacity`; every part carries the prompt again."""
    stored = [s.token_ids[: s.loss_at[-1]] for s in group]
    bundle = _Bundle()
    for i in sorted(range(len(group)), key=lambda i: stored[i].tolist()):
        if len(stored[i]) > capacity:
            raise InputError(
                f"a trajectory of {len(stored[i])} tokens does not fit train.capacity {capacity}: raise the capacity "
                "or lower rollout.max_new_tokens"
            )
        if bundle.size + bundle.new_tokens(stored[i]) > capacity:
            yield bundle
            bundle = _Bundle()
        bundle.add(group[i], stored[i])
    if bundle.size:
        yield bundle


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


def _join(bundles: list[_Bundle]) -> MicroBatch:
    """One pack; without bundles, a single token that nothing trains on, for ranks that must compute in step."""
    if not bundles:
        return _join([_idle_bundle()])
    starts = np.cumsum([0, *(b.size for b in bundles)])[:-1].astype(np.int32)
    placed = list(zip(bundles, starts, strict=True))
    sequences = [s for b in bundles for s in b.sequences]
    predecessors = np.concatenate([p + start for b, start in placed for p in b.predecessors])
    targets = np.concatenate([s.token_ids[s.loss_at] for s in sequences])
    pairs = predecessors.astype(np.int64) << 32 | targets
    scored, loss_scores = np.unique(pairs, return_inverse=True)
    keys = [k + start for b, start in placed for k in b.keys]
    counts = [len(s.loss_at) for s in sequences]
    return MicroBatch(
        token_ids=np.concatenate([t for b in bundles for t in b.tokens]).astype(np.int32),
        position_ids=np.concatenate([p for b in bundles for p in b.positions]),
        query_offsets=_offsets([q for b in bundles for q in b.queries]),
        key_offsets=_offsets([len(k) for k in keys]),
        key_indices=np.concatenate(keys),
        score_positions=(scored >> 32).astype(np.int32),
        score_targets=(scored & 0xFFFFFFFF).astype(np.int32),
        loss_scores=loss_scores.astype(np.int32),
        behavior_logprobs=np.concatenate([s.behavior_logprobs for s in sequences]).astype(np.float32),
        policy_versions=np.concatenate([s.policy_versions for s in sequences]).astype(np.int32),
        advantages=np.repeat(np.array([s.advantage for s in sequences], np.float32), counts),
    )


def _idle_bundle() -> _Bundle:
    nothing = np.empty(0, np.int32)
    bundle = _Bundle()
    bundle.add(
        LossSequence(np.zeros(2, np.int32), nothing, nothing.astype(np.float32), nothing, 0.0),
        np.zeros(1, np.int32),
    )
    return bundle


def _offsets(lengths: list[int]) -> np.ndarray:
    return np.cumsum([0, *lengths]).astype(np.int32)


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
