"""Join the sequences of a micro-batch into the arrays of one forward and backward. Torch-free.

    LossSequence, several ─► SequencePack, on its way to a rank ─► join ─► MicroBatch

The controller chooses the sequences, and a rank joins its own (arl.train.shard). The arrays of a MicroBatch are a
prefix tree (arl.models.prefix_tree), so that a token which several trajectories share in the same context, the whole
prompt first of all, is computed once.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from msgspec import Struct

from arl.data.model_limits import Flops
from arl.models.prefix_tree import PrefixTree, prefix_tree
from arl.train.loss_sequence import LossSequence


class SequencePack(Struct, frozen=True, kw_only=True):
    """Hold n sequences of one micro-batch, one after the other: L tokens up to the last loss token, N loss tokens."""

    token_ids: np.ndarray  # (L,) int32
    lengths: np.ndarray  # (n,) int32, summing to L
    num_loss_tokens: np.ndarray  # (n,) int32, summing to N
    loss_at: np.ndarray  # (N,) int32, index of each loss token in its own sequence, ascending, > 0
    behavior_logprobs: np.ndarray  # (N,) float32
    policy_versions: np.ndarray  # (N,) int32
    advantages: np.ndarray  # (N,) float32
    reference_logprobs: np.ndarray | None = None  # (N,) float32; None: the batch carries none
    values: np.ndarray | None = None  # (N,) float32; None: the batch carries none
    places: np.ndarray | None = None  # (N,) int32, of each loss token among those of the step; None: nobody asks

    @classmethod
    def of(cls, sequences: Sequence[LossSequence]) -> Self:
        """Copy what the loss needs of `sequences`. What comes behind a sequence's last loss token is left out."""
        tokens = [s.token_ids[: s.loss_at[-1] + 1] for s in sequences]
        return cls(
            token_ids=_joined(tokens, np.int32),
            lengths=np.array([len(ids) for ids in tokens], np.int32),
            num_loss_tokens=np.array([len(s.loss_at) for s in sequences], np.int32),
            loss_at=_joined([s.loss_at for s in sequences], np.int32),
            behavior_logprobs=_joined([s.behavior_logprobs for s in sequences], np.float32),
            policy_versions=_joined([s.policy_versions for s in sequences], np.int32),
            advantages=_joined([s.advantages for s in sequences], np.float32),
            reference_logprobs=_joined_column([s.reference_logprobs for s in sequences], np.float32),
            values=_joined_column([s.values for s in sequences], np.float32),
            places=_joined_column([s.places for s in sequences], np.int32),
        )


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
    behavior_logprobs: np.ndarray  # (N,) float32
    policy_versions: np.ndarray  # (N,) int32
    advantages: np.ndarray  # (N,) float32
    sequences: np.ndarray  # (N,) int32, the trajectory of each loss token, 0, 1, … in this pack
    reference_logprobs: np.ndarray | None = None  # (N,) float32; None: the batch carries none
    values: np.ndarray | None = None  # (N,) float32; None: the batch carries none
    places: np.ndarray | None = None  # (N,) int32, of each loss token among those of the step; None: nobody asks


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
        behavior_logprobs=pack.behavior_logprobs[by_score],
        policy_versions=pack.policy_versions[by_score],
        advantages=pack.advantages[by_score],
        sequences=sequences[by_score],
        reference_logprobs=_in_order(pack.reference_logprobs, by_score),
        values=_in_order(pack.values, by_score),
        places=_in_order(pack.places, by_score),
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


def _joined(arrays: Sequence[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    nothing = np.empty(0, dtype)  # numpy joins no empty list
    return np.concatenate([nothing, *arrays], dtype=dtype, casting="same_kind")


def _joined_column(arrays: Sequence[np.ndarray | None], dtype: type[np.generic]) -> np.ndarray | None:
    """Join a column that all sequences have, (N,); return None if none has it."""
    filled = [array for array in arrays if array is not None]
    if not filled:
        return None
    assert len(filled) == len(arrays), "a column is there for all sequences or for none"
    return _joined(filled, dtype)


def _in_order(column: np.ndarray | None, by_score: np.ndarray) -> np.ndarray | None:
    return None if column is None else column[by_score]
