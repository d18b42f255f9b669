"""Pack sequences by their number: what the balanced packing is measured against. Torch-free.

AReaL's Algorithm 1 (arXiv 2505.24298) packs lengths, the longest first, and looks at numbers of sequences. The fixed
packing puts equally many sequences into each micro-batch, as systems without dynamic batching do.
"""

import math

import numpy as np

from arl.errors import InputError
from arl.train.balancer import Bins, deal


def algorithm_1(lengths: np.ndarray, capacity: int, k_min: int) -> Bins:
    """Put sequences, longest first, into bins of at most `capacity` tokens.

    A bin is opened when the sequence fits into none or while there are fewer than `k_min`. Otherwise the sequence goes
    to the bin with room that has the fewest sequences, of equals the first.

    Args:
        lengths: (n,) int, of at most `capacity` tokens.
    """
    bins: Bins = []
    rooms: list[int] = []
    longest_first = np.argsort(-lengths, kind="stable").tolist()
    for item in longest_first:
        length = int(lengths[item])
        fitting = [number for number, room in enumerate(rooms) if room >= length]
        if len(bins) < k_min or not fitting:
            bins.append([item])
            rooms.append(capacity - length)
        else:
            chosen = min(fitting, key=lambda number: len(bins[number]))
            bins[chosen].append(item)
            rooms[chosen] -= length
    return bins


def fixed_count(lengths: np.ndarray, capacity: int, count: int) -> Bins:
    """Put `count` sequences into each bin, in their order; the last one may have fewer.

    Raises:
        InputError: so many sequences do not fit, because an env has added text; all else is refused before the start.
    """
    items = list(range(len(lengths)))
    starts = range(0, len(items), count)
    bins = [items[start : start + count] for start in starts]
    for members in bins:
        tokens = int(lengths[members].sum())
        if tokens > capacity:
            raise InputError(
                f"train.packing_count {count}: so many sequences have {tokens} tokens here, and train.capacity is "
                f"{capacity}; lower train.packing_count, or raise the capacity"
            )
    return bins


def deal_evenly(bins: Bins, work: np.ndarray, ranks: int) -> list[Bins]:
    """Deal bins to ranks, equally many to each, at least one: [rank][micro-batch][item]. Some may be empty."""
    of_each_rank = max(1, math.ceil(len(bins) / ranks))
    missing = ranks * of_each_rank - len(bins)
    empty: Bins = [[] for _ in range(missing)]
    return deal(bins + empty, work.tolist(), ranks)
