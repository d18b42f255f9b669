"""Join the sequences of a micro-batch into the arrays of one forward and backward. Torch-free.

    Shard of SequencePack ─► join_shard, or AheadJoiner ─► Shard of MicroBatch ─► Learner.step
                                                                             └► pack_sizes ─► packing_report

The arrays of a MicroBatch are a prefix tree (arl.models.prefix_tree), so that a token which several trajectories share
in the same context, the whole prompt first of all, is computed once.

A step begins when its first micro-batch is joined. A thread joins the others while the one before them is computed. A
minibatch may be computed twice (the proximal pass comes first), but it is joined once.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from arl.data.model_limits import Flops
from arl.models.prefix_tree import PrefixTree, prefix_tree
from arl.train.packing import BY_TOKENS, LossSequence, Minibatch, Packing, SequencePack, Shard, choose_packs
from arl.types import Batch


class MicroBatch(Struct, frozen=True, kw_only=True):
    """Hold one forward and backward: T tokens in S segments, M scored positions, N loss tokens."""

    token_ids: np.ndarray  # (T,) int32
    position_ids: np.ndarray  # (T,) int32
    query_offsets: np.ndarray  # (S+1,) int32, segment s owns tokens query_offsets[s]:query_offsets[s+1]
    key_offsets: np.ndarray  # (S+1,) int32 into key_indices
    key_indices: np.ndarray  # (K,) int32 pack index of every token a segment sees, its own last
    score_positions: np.ndarray  # (M,) int32 pack index whose hidden state predicts the target
    score_targets: np.ndarray  # (M,) int32 token
    loss_scores: np.ndarray  # (N,) int32 ascending, the score of each loss token; equal continuations share one
    sequences: np.ndarray  # (N,) int32, the trajectory of each loss token, 0, 1, … in this pack
    columns: dict[str, np.ndarray]  # (N,) each, see arl.train.packing.COLUMNS


def join(pack: SequencePack) -> MicroBatch:
    """Build a micro-batch; without sequences, a single token without a loss, for ranks that must compute in step."""
    tree = _tree(pack)
    numbers = np.arange(len(pack.lengths), dtype=np.int32)
    sequences = np.repeat(numbers, pack.num_loss_tokens)
    scores = _share_scores(pack, tree, sequences)
    by_score = np.argsort(scores.of_loss_tokens, kind="stable")  # so that a range of scores has a range of loss tokens
    return MicroBatch(
        token_ids=tree.token_ids,
        position_ids=tree.position_ids,
        query_offsets=tree.query_offsets,
        key_offsets=tree.key_offsets,
        key_indices=tree.key_indices,
        score_positions=scores.positions,
        score_targets=scores.targets,
        loss_scores=scores.of_loss_tokens[by_score],
        sequences=sequences[by_score],
        columns={name: column[by_score] for name, column in pack.columns.items()},
    )


def _tree(pack: SequencePack) -> PrefixTree:
    """Build the tree of what is computed: nothing needs the hidden state of a sequence's last token."""
    if not len(pack.lengths):
        nothing = np.zeros(1, np.int32)
        return prefix_tree([nothing])
    ends = np.cumsum(pack.lengths)
    sequences = np.split(pack.token_ids, ends[:-1])
    return prefix_tree([tokens[:-1] for tokens in sequences])


class _Scores(NamedTuple):
    """Hold M scored positions, each with the token whose log-probability it gives."""

    positions: np.ndarray  # (M,) int32 pack index
    targets: np.ndarray  # (M,) int32 token
    of_loss_tokens: np.ndarray  # (N,) int32, the score of each loss token


def _share_scores(pack: SequencePack, tree: PrefixTree, sequences: np.ndarray) -> _Scores:
    """Give loss tokens one score if the same token comes behind the same tokens; `sequences` (N,) has each one's."""
    ends = np.cumsum(pack.lengths)
    starts = ends - pack.lengths
    predecessors = tree.paths[sequences, pack.loss_at - 1].astype(np.int64)
    targets = pack.token_ids[starts[sequences] + pack.loss_at]
    pairs = predecessors << 32 | targets
    different_pairs, of_loss_tokens = np.unique(pairs, return_inverse=True)
    return _Scores(
        positions=(different_pairs >> 32).astype(np.int32),
        targets=(different_pairs & 0xFFFFFFFF).astype(np.int32),
        of_loss_tokens=of_loss_tokens.astype(np.int32),
    )


def forward_flops(batch: MicroBatch, flops: Flops) -> float:
    """Return the operations of a micro-batch's forward.

    Tokens that trajectories share are computed and counted once, and positions without a loss have no row in the head.
    A token at position p sees p + 1 keys.
    """
    num_tokens = len(batch.token_ids)
    num_keys = int(batch.position_ids.sum(dtype=np.int64)) + num_tokens
    num_scores = len(batch.score_targets)
    return flops.of(num_tokens, num_keys, num_scores)


class PackSizes(Struct, frozen=True):
    """Hold what each of a rank's M micro-batches of a step computes, in order."""

    tokens: np.ndarray  # (M,) int64
    flops: np.ndarray  # (M,) float64, of a forward


def join_shard(shard: Shard[SequencePack]) -> Shard[MicroBatch]:
    """Join every micro-batch of a shard."""
    return _with_micro_batches(shard, [tuple(map(join, m.micro_batches)) for m in shard.minibatches])


def _with_micro_batches(shard: Shard[SequencePack], micro_batches: Sequence[Sequence[MicroBatch]]) -> Shard[MicroBatch]:
    minibatches = []
    for minibatch, own in zip(shard.minibatches, micro_batches, strict=True):
        minibatches.append(Minibatch(own, minibatch.loss_tokens, minibatch.loss_sequences))
    return Shard(shard.version, minibatches)


def pack_groups(
    groups: Sequence[Sequence[LossSequence]],
    capacity: int,
    ranks: int,
    flops: Flops = BY_TOKENS,
) -> list[tuple[MicroBatch, ...]]:
    """Pack one minibatch into micro-batches for each rank, and join them; see choose_packs."""
    of_ranks = choose_packs(groups, capacity, ranks, flops)
    return [tuple(join(pack) for pack in of_rank) for of_rank in of_ranks]


class AheadJoiner:
    """Own the thread that joins micro-batches, one ahead of the computation."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "joiner")

    def shard(self, shard: Shard[SequencePack], first_minibatch: int = 0) -> Shard[MicroBatch]:
        """Return a shard whose micro-batches are joined ahead of their use; waits for the first.

        Args:
            first_minibatch: the one that is computed first.
        """
        packs = [pack for minibatch in shard.minibatches for pack in minibatch.micro_batches]
        joined = _Joined(packs, self._thread)
        parts = []
        start = 0
        for minibatch in shard.minibatches:
            end = start + len(minibatch.micro_batches)
            parts.append(_Part(joined, range(start, end)))
            start = end
        parts[first_minibatch][0]
        return _with_micro_batches(shard, parts)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


class _Joined:
    """Hold the micro-batches of a step, joined or not yet."""

    def __init__(self, packs: Sequence[SequencePack], thread: ThreadPoolExecutor) -> None:
        self._packs = packs
        self._thread = thread
        self._futures: dict[int, Future[MicroBatch]] = {}

    def get(self, i: int) -> MicroBatch:
        """Return micro-batch i, and let the thread begin with the next. The first one follows the last one."""
        self._begin(i)
        self._begin((i + 1) % len(self._packs))
        return self._futures[i].result()  # it only computes, so it ends

    def _begin(self, i: int) -> None:
        if i not in self._futures:
            self._futures[i] = self._thread.submit(join, self._packs[i])


class _Part(Sequence[MicroBatch]):
    """Hold the micro-batches of one minibatch."""

    def __init__(self, joined: _Joined, places: range) -> None:
        self._joined = joined
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, i: int) -> MicroBatch:  # type: ignore[override]  # no slices
        return self._joined.get(self._places[i])


def pack_sizes(shard: Shard[MicroBatch], flops: Flops) -> PackSizes:
    """Measure the micro-batches of a shard. `flops` are those of the model."""
    tokens = []
    flops_of_packs = []
    for minibatch in shard.minibatches:
        for pack in minibatch.micro_batches:
            tokens.append(len(pack.token_ids))
            flops_of_packs.append(forward_flops(pack, flops))
    return PackSizes(
        tokens=np.array(tokens, np.int64),
        flops=np.array(flops_of_packs, np.float64),
    )


def packing_report(batch: Batch, sizes: Sequence[PackSizes], packing: Packing) -> dict[str, float]:
    """Return the metrics of the micro-batches that `batch` became; arl/metrics/names.py defines them.

    Args:
        sizes: of each rank.
    """
    work = np.stack([of_rank.flops for of_rank in sizes])
    synchronous_time = work.max(axis=0).sum()
    mean_time = work.sum(axis=1).mean()
    computed = sum(int(of_rank.tokens.sum()) for of_rank in sizes)
    room = packing.train.capacity * work.size
    given = 0
    for group in batch.groups:
        given += sum(len(trajectory.token_ids) for trajectory in group.trajectories)
    return {
        "packing/balance": float(synchronous_time / mean_time),
        "packing/efficiency": computed / room,
        "packing/saved_fraction": 1 - computed / given,
    }
