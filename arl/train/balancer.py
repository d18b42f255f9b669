"""Puts items into micro-batches and deals micro-batches to ranks, so that no rank waits long. Torch-free.

    items ─► as few micro-batches as the bound allows, or as first-fit needs ─► spread by FLOPs
          ─► sorted ─► dealt, R at a time ─► [rank][micro-batch][item]

FSDP2's ranks move in step, because every layer of micro-batch m is gathered by all of them. So a minibatch takes its
*synchronous time*: the sum over m of the largest micro-batch m of any rank. It is short if the R micro-batches of every
m, a *wave*, are similar; that the ranks have equal sums is not enough.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np

from arl.errors import InputError

FEW = 2048  # items; with more of them there are many waves, and trying a second way gains less than it costs

Bins = list[list[int]]


def balance(tokens: np.ndarray, flops: np.ndarray, capacity: int, ranks: int) -> list[Bins]:
    """Deal n items to R ranks: [rank][micro-batch][item], each rank's heaviest micro-batch first.

    Every rank has equally many micro-batches, at least one, of at most `capacity` tokens. Their number is the least
    possible, R·⌈L2/R⌉, if the items can be spread over so many. If not, it is R·⌈F/R⌉, where first-fit-decreasing
    needs F ≤ 3/2 · L2. If there are at most FEW items, both ways are tried and the shorter is taken. The same items in
    any order give the same micro-batches.

    Args:
        tokens: (n,) int, positive.
        flops: (n,) float, not negative.

    Raises:
        InputError: an item of more than `capacity` tokens.
    """
    if len(tokens) and tokens.max() > capacity:
        raise InputError(f"an item of {tokens.max()} tokens does not fit a capacity of {capacity}: raise the capacity")
    order = np.lexsort((-flops, -tokens))
    sizes = tokens[order].tolist()
    work = flops[order].tolist()
    count = least_micro_batches(tokens, capacity, ranks)
    ways = [_spread(range(len(sizes)), sizes, work, count, ranks, capacity)]
    if ways[0] is None or (ranks > 1 and len(sizes) <= FEW):
        fitted = _first_fit(sizes, capacity)
        fitted += [[] for _ in range(-len(fitted) % ranks)]
        if len(fitted) > count:
            ways.append(_spread(range(len(sizes)), sizes, work, len(fitted), ranks, capacity))
        ways.append([b for wave in _waves(fitted, work, ranks) for b in _respread(wave, sizes, work, capacity)])
    fit = [way for way in ways if way]
    if ranks > 1:  # one rank waits for no other: the first way has the fewest micro-batches, and the most equal ones
        fit.sort(key=lambda way: (len(way), sum(_load(wave[0], work) for wave in _waves(way, work, ranks))))
    return [[order[members].tolist() for members in share] for share in deal(fit[0], work, ranks)]


def deal(bins: Bins, work: Sequence[float], ranks: int) -> list[Bins]:
    """Deal bins, a multiple of `ranks`, wave by wave: the heaviest bin goes to the rank with the least work so far."""
    shares: list[Bins] = [[] for _ in range(ranks)]
    done = [0.0] * ranks
    for wave in _waves(bins, work, ranks):
        for rank, members in zip(sorted(range(ranks), key=done.__getitem__), wave, strict=True):
            shares[rank].append(members)
            done[rank] += _load(members, work)
    return shares


def synchronous_time(shares: Sequence[Sequence[Sequence[int]]], flops: np.ndarray) -> float:
    """Sum over m the largest micro-batch m of any rank, in FLOPs. `shares` is [rank][micro-batch][item]."""
    waves = zip(*shares, strict=True)
    return sum(max(float(flops[list(members)].sum()) for members in wave) for wave in waves)


def least_time(flops: np.ndarray, ranks: int) -> float:
    """Bound the synchronous time from below: an equal part for each rank, or the largest item, which is not divided."""
    return max(float(flops.sum()) / ranks, float(flops.max(initial=0.0)))


def least_micro_batches(tokens: np.ndarray, capacity: int, ranks: int) -> int:
    """Bound the number of micro-batches from below: R·⌈L2/R⌉, at least R, for R ranks with equally many."""
    return max(1, -(-martello_toth(tokens, capacity) // ranks)) * ranks


def martello_toth(tokens: np.ndarray, capacity: int) -> int:
    """Bound from below the bins of `capacity` C that hold `tokens`, (n,) int: L2 of Martello and Toth 1990, §8.3.

    Take any a ≤ C/2. Items above C/2 need a bin each. Of these bins only those whose item has at most C − a tokens have
    room for an item of at least a. Items of at least a that do not fit there need more bins. L2 is the largest such
    number over all a.
    """
    ascending = np.sort(tokens).astype(np.int64)
    total = np.concatenate([[0], np.cumsum(ascending)])
    half = int(np.searchsorted(ascending, capacity // 2, "right"))
    least = np.concatenate([[0], np.unique(ascending[:half])])  # every a at which the bound can change
    alone = np.searchsorted(ascending, capacity - least, "right")
    room = (alone - half) * capacity - (total[alone] - total[half])
    rest = total[half] - total[np.searchsorted(ascending, least, "left")] - room
    return int(len(ascending) - half + np.maximum(0, -(-rest // capacity)).max())


def _first_fit(sizes: Sequence[int], capacity: int) -> Bins:
    """Put each item, largest first, into the first bin with room: F bins. A tree of the most room finds that bin.

    F ≤ 3/2 · L2. Take bin j = ⌈2F/3⌉. If an item of it is above C/2, the j bins up to it hold one such item each, and
    L2 ≥ j. If not, bins j … F hold at least 2(F − j) + 1 ≥ j − 1 items, none of which has room in the j − 1 bins
    before: all items are more than (j − 1)·C, and L2 ≥ j again (cf. Simchi-Levi 1994).
    """
    leaves = 1 << len(sizes).bit_length()
    most, bins = [capacity] * (2 * leaves), list[list[int]]()
    for i, size in enumerate(sizes):
        node = 1
        while node < leaves:
            node *= 2
            node += most[node] < size
        if node - leaves == len(bins):
            bins.append([])
        bins[node - leaves].append(i)
        room = most[node] = most[node] - size
        while node > 1 and most[node // 2] != (room := max(room, most[node ^ 1])):
            node //= 2
            most[node] = room
    return bins


def _spread(
    items: Sequence[int], sizes: Sequence[int], work: Sequence[float], count: int, ranks: int, capacity: int
) -> Bins | None:
    """Spread items over `count` bins in waves of `ranks`; None if an item finds no room. Items come largest first.

    The first items take a bin each. Every other item goes to the bin with room for it that is furthest below the
    fullest of its wave, because there it adds no synchronous time, or the least. With one wave this is the
    longest-processing-time rule (Graham 1969). A bin without room is set aside until items fit. O(n log n).
    """
    ranks = ranks if ranks > 1 else count  # one rank waits for no other; equally full bins need the least memory
    bins: Bins = [[i] for i in items[:count]] + [[] for _ in range(count - len(items))]
    room = [capacity - sum(sizes[i] for i in members) for members in bins]
    load = [_load(members, work) for members in bins]
    waves = [[(load[b], b) for b in range(start, start + ranks)] for start in range(0, count, ranks)]
    level = [max(wave)[0] for wave in waves]
    for wave in waves:
        heapify(wave)
    gaps = [(wave[0][0] - level[w], w) for w, wave in enumerate(waves)]  # negative, the widest first; some outdated
    heapify(gaps)
    waiting: list[tuple[int, int]] = []  # (−room, bin)
    for i in items[count:]:
        while waiting and -waiting[0][0] >= sizes[i]:
            _, b = heappop(waiting)
            heappush(waves[b // ranks], (load[b], b))
            heappush(gaps, (waves[b // ranks][0][0] - level[b // ranks], b // ranks))
        while gaps:
            gap, w = gaps[0]
            if not waves[w] or gap != waves[w][0][0] - level[w]:
                heappop(gaps)
            elif room[b := waves[w][0][1]] >= sizes[i]:
                break
            else:
                heappop(waves[w])
                heappush(waiting, (-room[b], b))
                if waves[w]:
                    heapreplace(gaps, (waves[w][0][0] - level[w], w))
        else:
            return None
        bins[b].append(i)
        room[b] -= sizes[i]
        load[b] += work[i]
        level[w] = max(level[w], load[b])
        heapreplace(waves[w], (load[b], b))
        heapreplace(gaps, (waves[w][0][0] - level[w], w))
    return bins


def _respread(wave: Bins, sizes: Sequence[int], work: Sequence[float], capacity: int) -> Bins:
    """Spread the items of one wave anew if that makes its largest bin smaller."""
    again = _spread(sorted(i for members in wave for i in members), sizes, work, len(wave), len(wave), capacity)
    return min([wave, again or wave], key=lambda bins: max(_load(members, work) for members in bins))


def _waves(bins: Bins, work: Sequence[float], ranks: int) -> list[Bins]:
    """Cut bins into waves, heaviest first: no other way to cut them takes less synchronous time."""
    bins = sorted(bins, key=lambda members: -_load(members, work))
    return [bins[start : start + ranks] for start in range(0, len(bins), ranks)]


def _load(members: Sequence[int], work: Sequence[float]) -> float:
    return sum([work[i] for i in members])
