"""Items into micro-batches, and micro-batches onto ranks, so that no rank waits long. Torch-free.

    items ─► as few micro-batches as the bound allows, or as first-fit needs ─► spread by FLOPs
          ─► sorted ─► dealt, R at a time ─► [rank][micro-batch][item]

FSDP2's ranks move in step: every layer of micro-batch m is gathered by all of them. So a minibatch takes its
*synchronous time*: the sum over m of the largest micro-batch m of a rank. What keeps it short is R similar
micro-batches at every m, a wave, rather than ranks with equal sums.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np

from arl.errors import InputError

FEW = 2048  # items; with more of them, waves are many, and a second way to fill them gains less than it costs

Bins = list[list[int]]


def balance(tokens: np.ndarray, flops: np.ndarray, capacity: int, ranks: int) -> list[Bins]:
    """Deal n items to R ranks: [rank][micro-batch][item], each rank's heaviest micro-batch first.

    Every rank has equally many micro-batches, at least one, of at most `capacity` tokens. They are the fewest there
    can be, R·⌈L2/R⌉, if spreading the items over so many leaves none without room; or else R·⌈F/R⌉, where
    first-fit-decreasing needs F ≤ 3/2 · L2. Of a few items, both ways are tried and the shorter taken. The same
    items in any order give the same micro-batches.

    Args:
        tokens: (n,) int, positive.
        flops: (n,) float, not negative.

    Raises:
        InputError: an item of more than `capacity` tokens.
    """
    if len(tokens) and tokens.max() > capacity:
        raise InputError(f"an item of {tokens.max()} tokens does not fit a capacity of {capacity}: raise the capacity")
    order = np.lexsort((-flops, -tokens))
    sizes, work = tokens[order].tolist(), flops[order].tolist()
    count = least_micro_batches(tokens, capacity, ranks)
    ways = [_spread(range(len(sizes)), sizes, work, count, ranks, capacity)]
    if ways[0] is None or (ranks > 1 and len(sizes) <= FEW):
        fitted = _first_fit(sizes, capacity)
        fitted += [[] for _ in range(-len(fitted) % ranks)]
        if len(fitted) > count:
            ways.append(_spread(range(len(sizes)), sizes, work, len(fitted), ranks, capacity))
        ways.append([b for wave in _waves(fitted, work, ranks) for b in _respread(wave, sizes, work, capacity)])
    fit = [way for way in ways if way]
    if ranks > 1:  # one rank waits for nobody: the first way has the fewest micro-batches, as equally full as can be
        fit.sort(key=lambda way: (len(way), sum(_load(wave[0], work) for wave in _waves(way, work, ranks))))
    return [[order[members].tolist() for members in share] for share in deal(fit[0], work, ranks)]


def deal(bins: Bins, work: Sequence[float], ranks: int) -> list[Bins]:
    """Bins, a multiple of `ranks`, to ranks: wave by wave, the heaviest to the rank that has the least so far."""
    shares: list[Bins] = [[] for _ in range(ranks)]
    done = [0.0] * ranks
    for wave in _waves(bins, work, ranks):
        for rank, members in zip(sorted(range(ranks), key=done.__getitem__), wave, strict=True):
            shares[rank].append(members)
            done[rank] += _load(members, work)
    return shares


def synchronous_time(shares: Sequence[Sequence[Sequence[int]]], flops: np.ndarray) -> float:
    """Of [rank][micro-batch][item]: the sum over m of the largest micro-batch m of a rank, in FLOPs."""
    waves = zip(*shares, strict=True)
    return sum(max(float(flops[list(members)].sum()) for members in wave) for wave in waves)


def least_time(flops: np.ndarray, ranks: int) -> float:
    """No synchronous time is shorter: each rank its share, or the largest item, which nobody divides."""
    return max(float(flops.sum()) / ranks, float(flops.max(initial=0.0)))


def least_micro_batches(tokens: np.ndarray, capacity: int, ranks: int) -> int:
    """R·⌈L2/R⌉, at least R: no R ranks with equally many micro-batches have fewer."""
    return max(1, -(-martello_toth(tokens, capacity) // ranks)) * ranks


def martello_toth(tokens: np.ndarray, capacity: int) -> int:
    """L2, a lower bound of the bins of `capacity` that hold `tokens`, (n,) int (Martello and Toth 1990, §8.3).

    For any a ≤ C/2, items above C/2 have a bin each, and only those of at most C − a tokens have room for items of at
    least a: what of these does not fit there needs more bins. The bound is the largest over all a.
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
    """Each item, largest first, into the first bin with room: F bins. A tree over them knows the most room below.

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
    """`count` bins in waves of `ranks`; None where an item finds no room. Items come by size, largest first.

    The first items take a bin each. Every other goes to the bin with room for it that is furthest below the fullest
    of its wave: there it costs no time, or the least. With one wave that is the longest-processing-time rule
    (Graham 1969). A bin without room waits until items are small enough: O(n log n).
    """
    ranks = ranks if ranks > 1 else count  # one rank waits for nobody; equally full bins need the least memory
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
    """The items of one wave, spread anew where that is shorter."""
    again = _spread(sorted(i for members in wave for i in members), sizes, work, len(wave), len(wave), capacity)
    return min([wave, again or wave], key=lambda bins: max(_load(members, work) for members in bins))


def _waves(bins: Bins, work: Sequence[float], ranks: int) -> list[Bins]:
    """Sorted, heaviest first: of all ways to cut bins into waves, none takes less synchronous time."""
    bins = sorted(bins, key=lambda members: -_load(members, work))
    return [bins[start : start + ranks] for start in range(0, len(bins), ranks)]


def _load(members: Sequence[int], work: Sequence[float]) -> float:
    return sum([work[i] for i in members])
