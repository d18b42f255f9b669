"""Join the sequences of a micro-batch into the arrays of one forward and backward. Torch-free.

    Shard of SequencePack ─► join_shard, or join_ahead ─► Shard of MicroBatch ─► Learner.step
                                                                            └► pack_sizes ─► packing_report

The arrays of a MicroBatch are a prefix tree (arl.models.prefix_tree), so that a token which several trajectories share
in the same context, the whole prompt first of all, is computed once.

A step begins when its first micro-batch is joined. A thread joins the others meanwhile. A minibatch may be computed
twice (the proximal pass comes first), but it is joined once.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, Future

import numpy as np
from msgspec import Struct

from arl.config.teacher_section import TEACHERS, TOP_IDS
from arl.data.model_limits import Flops
from arl.models.prefix_tree import prefix_tree
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
    teacher: dict[str, np.ndarray] = {}  # (N,) or (N, k) each, what an engine said of the loss tokens


def join(pack: SequencePack) -> MicroBatch:
    """Build a micro-batch; without sequences, a single token without a loss, for ranks that must compute in step.

    Loss tokens have one score if the same token comes behind the same tokens. They are sorted by score, so that a range
    of scores has a range of loss tokens.
    """
    ends = np.cumsum(pack.lengths)
    starts = ends - pack.lengths
    # Nothing needs the hidden state of a sequence's last token.
    computed = [tokens[:-1] for tokens in np.split(pack.token_ids, ends[:-1])] if len(ends) else [np.zeros(1, np.int32)]
    tree = prefix_tree(computed)
    numbers = np.arange(len(pack.lengths), dtype=np.int32)
    sequences = np.repeat(numbers, pack.num_loss_tokens)
    predecessors = tree.paths[sequences, pack.loss_at - 1].astype(np.int64)
    targets = pack.token_ids[starts[sequences] + pack.loss_at]
    scored, score_of = np.unique(predecessors << 32 | targets, return_inverse=True)
    if TOP_IDS in pack.columns:  # two sources may have the same prompt, and teachers of their own
        told = np.column_stack([score_of, pack.columns[TOP_IDS]])
        told, score_of = np.unique(told, axis=0, return_inverse=True)
        scored, score_of = scored[told[:, 0]], score_of.reshape(-1)
    by_score = np.argsort(score_of, kind="stable")
    return MicroBatch(
        token_ids=tree.token_ids,
        position_ids=tree.position_ids,
        query_offsets=tree.query_offsets,
        key_offsets=tree.key_offsets,
        key_indices=tree.key_indices,
        score_positions=(scored >> 32).astype(np.int32),
        score_targets=(scored & 0xFFFFFFFF).astype(np.int32),
        loss_scores=score_of[by_score].astype(np.int32),
        sequences=sequences[by_score],
        columns={name: column[by_score] for name, column in pack.columns.items() if name not in TEACHERS},
        teacher={name: column[by_score] for name, column in pack.columns.items() if name in TEACHERS},
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


def join_ahead(shard: Shard[SequencePack], thread: Executor, first_minibatch: int = 0) -> Shard[MicroBatch]:
    """Let a thread join the micro-batches in the order of their use; waits for the first.

    Args:
        first_minibatch: the one that is computed first. The proximal pass and the update use the same joined arrays.
    """
    joining: dict[int, _Joining] = {}
    numbers = range(len(shard.minibatches))
    for number in (*numbers[first_minibatch:], *numbers[:first_minibatch]):
        packs = shard.minibatches[number].micro_batches
        joining[number] = _Joining([thread.submit(join, pack) for pack in packs])
    joining[first_minibatch][0]
    return _with_micro_batches(shard, [joining[number] for number in numbers])


class _Joining(Sequence[MicroBatch]):
    """Hold the micro-batches of one minibatch, joined or not yet."""

    def __init__(self, futures: Sequence[Future[MicroBatch]]) -> None:
        self._futures = futures

    def __len__(self) -> int:
        return len(self._futures)

    def __getitem__(self, i: int) -> MicroBatch:  # type: ignore[override]  # no slices
        return self._futures[i].result()  # it only computes, so it ends


def _with_micro_batches(shard: Shard[SequencePack], micro_batches: Sequence[Sequence[MicroBatch]]) -> Shard[MicroBatch]:
    pairs = zip(shard.minibatches, micro_batches, strict=True)
    return Shard(shard.version, [Minibatch(own, m.loss_tokens, m.loss_sequences) for m, own in pairs])


def pack_groups(
    groups: Sequence[Sequence[LossSequence]],
    capacity: int,
    ranks: int,
    flops: Flops = BY_TOKENS,
) -> list[tuple[MicroBatch, ...]]:
    """Pack one minibatch into micro-batches for each rank, and join them; see choose_packs."""
    return [tuple(map(join, of_rank)) for of_rank in choose_packs(groups, capacity, ranks, flops)]


def pack_sizes(shard: Shard[MicroBatch], flops: Flops) -> PackSizes:
    """Measure the micro-batches of a shard. `flops` are those of the model."""
    packs = [pack for minibatch in shard.minibatches for pack in minibatch.micro_batches]
    return PackSizes(
        tokens=np.array([len(pack.token_ids) for pack in packs], np.int64),
        flops=np.array([forward_flops(pack, flops) for pack in packs], np.float64),
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
    given = sum(len(trajectory.token_ids) for group in batch.groups for trajectory in group.trajectories)
    return {
        "packing/balance": float(synchronous_time / mean_time),
        "packing/efficiency": computed / (packing.train.capacity * work.size),
        "packing/saved_fraction": 1 - computed / given,
    }
