"""Store sequences so that a token which several of them share in the same context is stored once. Numpy only.

    sequences  P P P a b      stored  P P P a b      segments  [P P P a b]  sees itself
               P P P a c              c                        [c]          sees P P P a c
               P P P a                                         none: all of it is already stored

The trainer computes a micro-batch from such a tree, and the engine the prompts of a pass. arl.models.packed is the
attention over it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class PrefixTree:
    """Hold T tokens in S segments. A tree index is the position of a token among the T."""

    token_ids: np.ndarray  # (T,) int32
    position_ids: np.ndarray  # (T,) int32
    query_offsets: np.ndarray  # (S+1,) int32, segment s owns tokens query_offsets[s]:query_offsets[s+1]
    key_offsets: np.ndarray  # (S+1,) int32 into key_indices
    key_indices: np.ndarray  # (K,) int32 tree index of every token a segment sees, its own last
    paths: np.ndarray  # (n, longest) int32 tree index of each token of each sequence; behind its end, of any token


def prefix_tree(sequences: Sequence[np.ndarray]) -> PrefixTree:
    """Build the tree of n ≥ 1 sequences, (L,) int32 each with L ≥ 1, in any order. Equal sequences share one path."""
    lengths = np.array([len(sequence) for sequence in sequences])
    table = _table(sequences, lengths)
    order = np.array(sorted(range(len(table)), key=lambda i: table[i].tobytes()))  # common beginnings are neighbors
    table = table[order]
    lengths = lengths[order]
    shared = np.array(shared_lengths([sequences[i] for i in order]))

    at = np.arange(table.shape[1])
    in_sequence = at < lengths[:, None]
    is_shared = at < shared[:, None]
    own = in_sequence & ~is_shared
    _, positions = np.nonzero(own)
    paths = _paths(own)
    paths_as_given = np.empty_like(paths)
    paths_as_given[order] = paths

    own_lengths = lengths - shared
    segments = np.flatnonzero(own_lengths)  # a sequence of which all is stored already has none
    paths_of_segments = paths[segments]
    is_key = in_sequence[segments]
    return PrefixTree(
        token_ids=table[own],
        position_ids=positions.astype(np.int32),
        query_offsets=_offsets(own_lengths[segments]),
        key_offsets=_offsets(lengths[segments]),
        key_indices=paths_of_segments[is_key],
        paths=paths_as_given,
    )


def _table(sequences: Sequence[np.ndarray], lengths: np.ndarray) -> np.ndarray:
    """Write the sequences as rows (n, longest), with −1, which no token is, behind the end of each."""
    at = np.arange(lengths.max())
    table = np.full((len(sequences), len(at)), -1, np.int32)
    table[at < lengths[:, None]] = np.concatenate(sequences)
    return table


def _paths(own: np.ndarray) -> np.ndarray:
    """Number the tokens that each row owns, `own` (n, longest) bool, and give a shared one its owner's number.

    The owner is the last row so far that owns a token in this column. Its number is the largest so far.
    """
    paths = np.zeros(own.shape, np.int32)
    paths[own] = np.arange(np.count_nonzero(own))
    return np.maximum.accumulate(paths, axis=0)


def _offsets(lengths: np.ndarray) -> np.ndarray:
    """Return where runs of these lengths begin, and where the last one ends."""
    ends = np.cumsum(lengths)
    return np.concatenate([[0], ends]).astype(np.int32)


def how_many_fit(sequences: Sequence[np.ndarray], limit: int) -> int:
    """Find the largest m, 0 to n, such that the tree of the first m of n sequences has at most `limit` tokens.

    Sequences are (L,) int32 each, in any order. Builds no tree.
    """
    return bisect_right(range(1, len(sequences) + 1), limit, key=lambda m: _tree_size(sequences[:m]))


def _tree_size(sequences: Sequence[np.ndarray]) -> int:
    ordered = sorted(sequences, key=lambda sequence: sequence.tobytes())
    return sum(map(len, ordered)) - sum(shared_lengths(ordered))


def shared_lengths(ordered: Sequence[np.ndarray]) -> list[int]:
    """Return how many tokens each sequence shares with the one before it; 0 for the first.

    In a sorted order, what a sequence shares with any earlier one it also shares with the one just before it.
    If sequences are sorted by their bytes, a tree of consecutive ones stores the whole first one, and of each other one
    what is not shared.
    """
    shared = [0] * min(1, len(ordered))
    for one, other in pairwise(ordered):
        length = min(len(one), len(other))
        differs = np.append(one[:length] != other[:length], True)
        shared.append(int(differs.argmax()))
    return shared
