"""Put items into micro-batches and deal micro-batches to ranks, so that no rank waits long. Torch-free.

    items ─► as few micro-batches as the bound allows, or as first-fit needs ─► spread by FLOPs
          ─► sorted ─► dealt, R at a time ─► [rank][micro-batch][item]

FSDP2's ranks move in step, because every layer of micro-batch m is gathered by all of them. So a minibatch takes its
*synchronous time*: the sum over m of the largest micro-batch m of any rank. It is short if the R micro-batches of every
m, which form a *wave*, are similar. Equal sums of the ranks are not enough.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from arl.errors import InputError

FEW = 2048  # items; with more of them there are many waves, and trying a second way gains less than it costs

Bins = list[list[int]]


class _Items(NamedTuple):
    """Hold what is to be packed, the largest item first."""

    sizes: list[int]  # tokens
    work: list[float]  # FLOPs
    capacity: int  # tokens of a bin


def balance(tokens: np.ndarray, flops: np.ndarray, capacity: int, ranks: int) -> list[Bins]:
    """Deal n items to R ranks: [rank][micro-batch][item], each rank's heaviest micro-batch first.

    Every rank has equally many micro-batches, at least one, of at most `capacity` tokens. Their number is the least
    possible, R·⌈L2/R⌉, if the items can be spread over so many. If not, it is R·⌈F/R⌉, where first-fit-decreasing
    needs F ≤ 3/2 · L2. If there are at most FEW items, both ways are tried and the shorter is taken. The same items in
    any order give the same micro-batches.

    Args:
        tokens: (n,) int, positive, at most `capacity`.
        flops: (n,) float, not negative.
    """
    largest_first = np.lexsort((-flops, -tokens))
    items = _Items(tokens[largest_first].tolist(), flops[largest_first].tolist(), capacity)
    bins = _pack(items, ranks, least_micro_batches(tokens, capacity, ranks))
    shares = deal(bins, items.work, ranks)
    return [[largest_first[members].tolist() for members in share] for share in shares]


def deal(bins: Bins, work: Sequence[float], ranks: int) -> list[Bins]:
    """Deal bins, a multiple of `ranks`, wave by wave: the heaviest bin goes to the rank with the least work so far."""
    shares: list[Bins] = [[] for _ in range(ranks)]
    done = [0.0] * ranks
    for wave in _waves(bins, work, ranks):
        least_work_first = sorted(range(ranks), key=done.__getitem__)
        for rank, members in zip(least_work_first, wave, strict=True):
            shares[rank].append(members)
            done[rank] += _load(members, work)
    return shares


def least_micro_batches(tokens: np.ndarray, capacity: int, ranks: int) -> int:
    """Bound the number of micro-batches from below: R·⌈L2/R⌉, at least R, for R ranks with equally many."""
    per_rank = -(-martello_toth(tokens, capacity) // ranks)
    return max(1, per_rank) * ranks


def martello_toth(tokens: np.ndarray, capacity: int) -> int:
    """Bound from below the bins of `capacity` C that hold `tokens`, (n,) int: L2 of Martello and Toth 1990, §8.3.

    Take any a ≤ C/2. Items above C/2 need a bin each. Of these bins only those whose item has at most C − a tokens have
    room for an item of at least a. Items of at least a that do not fit there need more bins. L2 is the largest such
    number over all a.
    """
    ascending = np.sort(tokens).astype(np.int64)
    total = np.concatenate([[0], np.cumsum(ascending)])  # total[i] is the sum of the i smallest
    num_small = int(np.searchsorted(ascending, capacity // 2, "right"))  # items of at most C/2
    a = np.concatenate([[0], np.unique(ascending[:num_small])])  # every a at which the bound can change
    first_small = np.searchsorted(ascending, a, "left")  # the smallest item of at least a
    first_alone = np.searchsorted(ascending, capacity - a, "right")  # the smallest item of more than C − a
    shared_bins = first_alone - num_small
    room = shared_bins * capacity - (total[first_alone] - total[num_small])
    without_room = total[num_small] - total[first_small] - room
    more_bins = np.maximum(0, -(-without_room // capacity))
    return int(len(ascending) - num_small + more_bins.max())


def _pack(items: _Items, ranks: int, least: int) -> Bins:
    """Put items into bins whose number is a multiple of `ranks` and not below `least`."""
    everything = range(len(items.sizes))
    spread = _spread(everything, items, least, ranks)
    if spread is not None and (ranks == 1 or len(everything) > FEW):
        return spread
    fitted = _first_fit(items)
    count = max(least, math.ceil(len(fitted) / ranks) * ranks)
    fitted += [[] for _ in range(count - len(fitted))]
    wider = _spread(everything, items, count, ranks) if count > least else None
    found = [way for way in (spread, wider, _respread(fitted, items, ranks)) if way is not None]
    if ranks == 1:  # it waits for no other, and the first way has the fewest micro-batches, and the most equal ones
        return found[0]
    return min(found, key=lambda way: (len(way), _time(way, items.work, ranks)))


def _first_fit(items: _Items) -> Bins:
    """Put each item, largest first, into the first bin with room: F bins.

    F ≤ 3/2 · L2. Take bin j = ⌈2F/3⌉. If an item of it is above C/2, the j bins up to it hold one such item each, and
    L2 ≥ j. If not, bins j … F hold at least 2(F − j) + 1 ≥ j − 1 items, none of which has room in the j − 1 bins
    before: all items are more than (j − 1)·C, and L2 ≥ j again (cf. Simchi-Levi 1994).
    """
    bins: Bins = [[] for _ in items.sizes]
    room = np.full(len(bins), items.capacity)
    for i, size in enumerate(items.sizes):
        b = int((room >= size).argmax())
        bins[b].append(i)
        room[b] -= size
    return [members for members in bins if members]


def _spread(chosen: Sequence[int], items: _Items, count: int, ranks: int) -> Bins | None:
    """Spread the chosen items over `count` bins in waves of `ranks`; None if an item finds no room.

    The first items take a bin each. Every other item goes to the bin with room for it that is furthest below the
    fullest of its wave, because there it adds no synchronous time, or the least. With one wave this is the
    longest-processing-time rule (Graham 1969).
    """
    bins: Bins = [[] for _ in range(count)]
    room = np.full(count, items.capacity)
    load = np.zeros(count)
    wave_size = ranks if ranks > 1 else count  # one rank waits for no other; equally full bins need the least memory
    fullest = np.zeros(count)  # of the wave of each bin
    for number, i in enumerate(chosen):
        if number < count:
            b = number
        else:
            gap = np.where(room >= items.sizes[i], load - fullest, np.inf)
            b = int(gap.argmin())
            if gap[b] == np.inf:
                return None
        bins[b].append(i)
        room[b] -= items.sizes[i]
        load[b] += items.work[i]
        start = b - b % wave_size
        wave = slice(start, start + wave_size)
        fullest[wave] = load[wave].max()
    return bins


def _respread(bins: Bins, items: _Items, ranks: int) -> Bins:
    """Spread the items of each wave anew, where that makes its largest bin smaller."""
    result: Bins = []
    for wave in _waves(bins, items.work, ranks):
        chosen = sorted(i for members in wave for i in members)
        again = _spread(chosen, items, len(wave), len(wave))
        if again is not None and _time(again, items.work, ranks) < _time(wave, items.work, ranks):
            result += again
        else:
            result += wave
    return result


def _waves(bins: Bins, work: Sequence[float], ranks: int) -> list[Bins]:
    """Cut bins into waves, heaviest first: no other way to cut them takes less synchronous time."""
    heaviest_first = sorted(bins, key=lambda members: -_load(members, work))
    return [heaviest_first[start : start + ranks] for start in range(0, len(bins), ranks)]


def _time(bins: Bins, work: Sequence[float], ranks: int) -> float:
    """Return the synchronous time of bins that are dealt in waves."""
    return sum(_load(wave[0], work) for wave in _waves(bins, work, ranks))


def _load(members: Sequence[int], work: Sequence[float]) -> float:
    return sum([work[i] for i in members])


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
    bins = [items[start : start + count] for start in range(0, len(items), count)]
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
    empty: Bins = [[] for _ in range(ranks * of_each_rank - len(bins))]
    return deal(bins + empty, work.tolist(), ranks)
