"""Pack a batch into what each rank computes. Torch-free: the controller packs, a rank receives only its shard.

    Batch ─► advantages ─► minibatches (whole groups, fixed here) ─► bundles ─► micro-batches ─► one Shard per rank

A bundle is what is left of a group. If the objective says that advantage 0 means gradient 0, trajectories whose
advantages are all exactly 0 are left out; the loss is still divided by the number of tokens before that. A micro-batch
is stored as a prefix tree (arl.models.prefix_tree), so that a token which several trajectories share in the same
context, the whole prompt first of all, is computed once. Bundles keep those that share most together.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, Self

import numpy as np
from msgspec import Struct

from arl.config.objective_section import AdvantageSection, ObjectiveSection
from arl.config.recipe import Train
from arl.data.model_limits import Flops
from arl.errors import InputError
from arl.models.prefix_tree import PrefixTree, how_many_fit, prefix_tree
from arl.train.algorithms.advantage import Advantage
from arl.train.balancer import balance
from arl.train.count_packing import algorithm_1, deal_evenly, fixed_count
from arl.train.loss_sequence import LossSequence, loss_sequences
from arl.types import Batch

BY_TOKENS = Flops(token=1.0, key=0.0, score=0.0)  # for one rank, which waits for nobody


class MicroBatch(Struct, frozen=True, kw_only=True):
    """Holds one forward and backward: T tokens in S segments, M scored positions, N loss tokens."""

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
    reference_logprobs: np.ndarray | None = None  # (N,) float32; None: the batch carries none
    values: np.ndarray | None = None  # (N,) float32; None: the batch carries none
    places: np.ndarray | None = None  # (N,) int32, of each loss token among those of the step; None: nobody asks


class Minibatch(Struct, frozen=True):
    """Holds one rank's part of an optimizer update."""

    micro_batches: tuple[MicroBatch, ...]  # this rank's; every rank has as many, at least one
    loss_tokens: int  # of all ranks, before trajectories without gradient were left out
    loss_sequences: int  # likewise: trajectories with loss tokens


class Shard(Struct, frozen=True):
    """Holds one rank's part of the step that turns version `version` into version + 1."""

    version: int
    minibatches: tuple[Minibatch, ...]


class Packing(Struct, frozen=True, kw_only=True):
    """Says how the batches of a run are packed."""

    minibatches: int
    capacity: int  # tokens of a micro-batch
    ranks: int
    advantage: Advantage
    leaves_out_zeros: bool  # the objective says that advantage 0 means gradient 0
    flops: Flops = BY_TOKENS  # of the model, by which micro-batches are balanced over ranks
    records: bool = False  # the run writes what is computed of each token: see arl.train.trained_tokens
    kind: Literal["balanced", "algorithm1", "fixed"] = "balanced"  # see train.packing
    count: int = 1  # see train.packing_count

    @classmethod
    def of(
        cls,
        train: Train,
        objective: ObjectiveSection,
        advantage: AdvantageSection,
        *,
        ranks: int,
        flops: Flops = BY_TOKENS,
        records: bool = False,
    ) -> Self:
        """Read the packing from the sections of a recipe."""
        assert isinstance(advantage, Advantage), "the recipe has checked it"
        return cls(
            minibatches=train.minibatches,
            capacity=train.capacity,
            ranks=ranks,
            advantage=advantage,
            leaves_out_zeros=objective.zero_advantage_is_zero_gradient,
            flops=flops,
            records=records,
            kind=train.packing,
            count=train.packing_count,
        )


def pack_batch(batch: Batch, packing: Packing) -> tuple[tuple[Shard, ...], dict[str, float]]:
    """Compute advantages and pack one step: a shard for each rank, and the packing metrics.

    Minibatch m takes groups m, m + minibatches, …: batches are ordered by deadline, so each sees every age.

    Raises:
        InputError: a trajectory longer than the capacity, groups that `minibatches` does not divide, or an advantage
            of the wrong shape.
    """
    if len(batch.groups) % packing.minibatches:
        raise InputError(
            f"train.minibatches {packing.minibatches} must divide the {len(batch.groups)} groups of a step"
        )
    groups = loss_sequences(batch, packing.advantage, places=packing.records)
    packed = []  # [minibatch][rank]
    for m in range(packing.minibatches):
        own = groups[m :: packing.minibatches]
        packed.append(_pack_minibatch(own, packing))
    shards = tuple(Shard(batch.version, of_rank) for of_rank in zip(*packed, strict=True))
    return shards, _report(batch, groups, shards, packing)


def _pack_minibatch(groups: list[list[LossSequence]], packing: Packing) -> list[Minibatch]:
    """Pack a minibatch: one Minibatch for each rank."""
    lengths = [len(s.loss_at) for group in groups for s in group]
    loss_tokens = sum(lengths)
    loss_sequences = sum(n > 0 for n in lengths)
    kept = [[s for s in group if _is_trained(s, packing)] for group in groups]
    if packing.kind == "balanced":
        packed = pack_groups(kept, packing.capacity, packing.ranks, packing.flops)
    else:
        packed = _pack_by_count(kept, packing)
    return [Minibatch(micro_batches, loss_tokens, loss_sequences) for micro_batches in packed]


def _is_trained(sequence: LossSequence, packing: Packing) -> bool:
    """Return False for a sequence that has no gradient."""
    if not len(sequence.loss_at):
        return False
    return bool(sequence.advantages.any()) or not packing.leaves_out_zeros


def pack_groups(
    groups: Sequence[Sequence[LossSequence]],
    capacity: int,
    ranks: int,
    flops: Flops = BY_TOKENS,
) -> list[tuple[MicroBatch, ...]]:
    """Pack one minibatch into micro-batches for each rank: equally many, at least one, heaviest first.

    Raises:
        InputError: a sequence longer than `capacity`.
    """
    bundles = [bundle for group in groups for bundle in _bundles(group, capacity)]
    sizes = []
    work = []
    for bundle in bundles:
        tree = prefix_tree([_stored(s) for s in bundle])
        sizes.append(len(tree.token_ids))
        work.append(_bundle_flops(bundle, tree, flops))
    balanced = balance(np.array(sizes, np.int64), np.array(work, np.float64), capacity, ranks)
    return [tuple(_join_bundles(bundles, members) for members in of_rank) for of_rank in balanced]


def _pack_by_count(groups: Sequence[Sequence[LossSequence]], packing: Packing) -> list[tuple[MicroBatch, ...]]:
    """Pack one minibatch of single sequences, by arl.train.count_packing; see pack_groups.

    Raises:
        InputError: a sequence longer than the capacity, or too many for a micro-batch.
    """
    bundles = [[sequence] for group in groups for sequence in group]
    lengths = np.array([len(_stored(sequence)) for (sequence,) in bundles], np.int64)
    _refuse_too_long(int(lengths.max(initial=0)), packing.capacity)
    if packing.kind == "algorithm1":
        bins = algorithm_1(lengths, packing.capacity, packing.count * packing.ranks)
    else:
        bins = fixed_count(lengths, packing.capacity, packing.count)
    shares = deal_evenly(bins, lengths.astype(np.float64), packing.ranks)
    return [tuple(_join_bundles(bundles, members) for members in of_rank) for of_rank in shares]


def _stored(sequence: LossSequence) -> np.ndarray:
    """Return the tokens to compute, (L,) int32. Nothing needs the hidden states from the last loss token on."""
    return sequence.token_ids[: sequence.loss_at[-1]]


def _bundles(group: Sequence[LossSequence], capacity: int) -> Iterator[list[LossSequence]]:
    """Cut the group where its prefix tree outgrows `capacity`; every part holds the prompt again."""
    longest = max((len(_stored(s)) for s in group), default=0)
    _refuse_too_long(longest, capacity)
    rest = sorted(group, key=lambda s: _stored(s).tobytes())
    while rest:
        count = how_many_fit([_stored(s) for s in rest], capacity)
        yield rest[:count]
        rest = rest[count:]


def _refuse_too_long(longest: int, capacity: int) -> None:
    if longest > capacity:
        raise InputError(
            f"a trajectory of {longest} tokens does not fit train.capacity {capacity}: raise the capacity "
            "or lower rollout.max_new_tokens"
        )


def _bundle_flops(bundle: Sequence[LossSequence], tree: PrefixTree, flops: Flops) -> float:
    """Estimate the operations of a forward. Counts every score, although equal continuations will share some."""
    num_scores = sum(len(s.loss_at) for s in bundle)
    return flops.of(len(tree.token_ids), _keys_seen(tree), num_scores)


def forward_flops(pack: MicroBatch, flops: Flops) -> float:
    """Return the operations of a pack's forward.

    Tokens that trajectories share are computed and counted once, and positions without a loss have no row in the head.
    """
    return flops.of(len(pack.token_ids), _keys_seen(pack), len(pack.score_targets))


def _keys_seen(tree: PrefixTree | MicroBatch) -> int:
    """Count pairs of a token and a key it sees: the q tokens of a segment with k keys see k − q + 1, …, k of them."""
    q = np.diff(tree.query_offsets).astype(np.int64)
    k = np.diff(tree.key_offsets).astype(np.int64)
    return int((q * k - q * (q - 1) // 2).sum())


def _join_bundles(bundles: Sequence[Sequence[LossSequence]], members: Sequence[int]) -> MicroBatch:
    return _join([s for i in members for s in bundles[i]])


def _join(sequences: list[LossSequence]) -> MicroBatch:
    """Build one pack; without sequences, a single token without a loss, for ranks that must compute in step."""
    stored = [_stored(s) for s in sequences]
    nothing = np.zeros(1, np.int32)
    tree = prefix_tree(stored or [nothing])
    predecessors = _joined([tree.paths[i, s.loss_at - 1] for i, s in enumerate(sequences)], np.int64)
    targets = _joined([s.token_ids[s.loss_at] for s in sequences], np.int32)
    pairs = predecessors << 32 | targets  # equal for loss tokens that share a score
    scored, loss_scores = np.unique(pairs, return_inverse=True)
    by_score = np.argsort(loss_scores, kind="stable")  # so that a range of scores has a range of loss tokens
    lengths = [len(s.loss_at) for s in sequences]
    indices = np.repeat(np.arange(len(sequences), dtype=np.int32), lengths)
    behavior_logprobs = _joined([s.behavior_logprobs for s in sequences], np.float32)
    policy_versions = _joined([s.policy_versions for s in sequences], np.int32)
    advantages = _joined([s.advantages for s in sequences], np.float32)
    return MicroBatch(
        token_ids=tree.token_ids,
        position_ids=tree.position_ids,
        query_offsets=tree.query_offsets,
        key_offsets=tree.key_offsets,
        key_indices=tree.key_indices,
        score_positions=(scored >> 32).astype(np.int32),
        score_targets=(scored & 0xFFFFFFFF).astype(np.int32),
        loss_scores=loss_scores[by_score].astype(np.int32),
        behavior_logprobs=behavior_logprobs[by_score],
        policy_versions=policy_versions[by_score],
        advantages=advantages[by_score],
        sequences=indices[by_score],
        reference_logprobs=_joined_column([s.reference_logprobs for s in sequences], by_score),
        values=_joined_column([s.values for s in sequences], by_score),
        places=_joined_column([s.places for s in sequences], by_score, np.int32),
    )


def _joined(arrays: list[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype)


def _joined_column(
    arrays: list[np.ndarray | None],
    by_score: np.ndarray,
    dtype: type[np.generic] = np.float32,
) -> np.ndarray | None:
    """Join a column that all sequences have, (N,); return None if none has it."""
    filled = [array for array in arrays if array is not None]
    if not filled:
        return None
    assert len(filled) == len(arrays), "a column is there for all sequences or for none"
    joined = _joined(filled, dtype)
    in_order: np.ndarray = joined[by_score]
    return in_order


def _report(
    batch: Batch,
    groups: list[list[LossSequence]],
    shards: tuple[Shard, ...],
    packing: Packing,
) -> dict[str, float]:
    """Return the metrics of a step's packing; arl/metrics/names.py defines them."""
    sequences = [s for group in groups for s in group]
    num_zero = sum(not s.advantages.any() for s in sequences)
    num_trained = sum(len(s.loss_at) for s in sequences)
    packs = [_micro_batches(shard) for shard in shards]
    work = np.array([[forward_flops(pack, packing.flops) for pack in of_rank] for of_rank in packs])
    synchronous_time = work.max(axis=0).sum()
    computed = sum(len(pack.token_ids) for of_rank in packs for pack in of_rank)
    given = sum(len(t.token_ids) for group in batch.groups for t in group.trajectories)
    return {
        "advantage/zero_fraction": num_zero / len(sequences),
        "packing/balance": float(synchronous_time / work.sum(axis=1).mean()),
        "packing/efficiency": computed / (packing.capacity * work.size),
        "packing/saved_fraction": 1 - computed / given,
        "tokens/trained": float(num_trained),
    }


def _micro_batches(shard: Shard) -> list[MicroBatch]:
    return [pack for minibatch in shard.minibatches for pack in minibatch.micro_batches]
