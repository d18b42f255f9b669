"""Compare the balancer with those of others, on sequences of four kinds of lengths: `arl bench packing`.

    lengths ─► each packer's bins ─► completed to a multiple of R, dealt as ours ─► count, synchronous time, fullest bin

No sequence has more than CAPACITY tokens. The other packers are:

areal           Algorithm 1 of AReaL, arXiv 2505.24298: longest first; a new bin while there are fewer than asked for,
                or if it fits nowhere; else to the bin of fewest sequences that has room. Again, with more bins asked
                for, until their number is a multiple of R
karmarkar_karp  k-way largest differencing on tokens (Karmarkar and Karp 1982), k = ⌈Σ/C⌉ rounded up to a multiple of
                R; it ignores the capacity, so its fullest bin is reported

Synchronous time and ideal are defined in arl.train.balance, FLOPs in arl.data.model_limits. Every packer sees the
whole batch of all ranks, and its bins are dealt in sorted waves, which is better than its own code does.
"""

import heapq
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from arl.data.model_limits import Flops
from arl.train.balance import Bins, balance, deal, least_micro_batches, least_time, synchronous_time

CAPACITY = 32_768
SIZES = (128, 512, 2048, 8192)
RANKS = (1, 8, 64)

# A Qwen2 of 1.5 billion parameters.
LAYERS = 28
HIDDEN = 1536
KEY_VALUE = 256
MLP = 8960
VOCAB = 151_936
ATTENTION_WEIGHTS = 2 * HIDDEN * (HIDDEN + KEY_VALUE)
MLP_WEIGHTS = 3 * HIDDEN * MLP
SHAPE = Flops(
    token=2.0 * LAYERS * (ATTENTION_WEIGHTS + MLP_WEIGHTS), key=4.0 * LAYERS * HIDDEN, score=2.0 * HIDDEN * VOCAB
)

Packer = Callable[[np.ndarray, np.ndarray, int], list[Bins]]  # lengths, FLOPs, ranks ─► [rank][micro-batch][item]


class Packed(Struct, frozen=True):
    """Hold what one packer made of one batch; the fields are columns of the report."""

    micro_batches: int
    time_to_ideal: float
    fullest_to_capacity: float
    ms: float  # of one core


def bench_packing(draws: int) -> dict[str, Any]:
    """Measure every case: means over `draws`, and the median of milliseconds. `columns` names the numbers of a row."""
    rows = []
    for kind, draw in LENGTHS.items():
        for n in SIZES:
            drawn = [draw(np.random.default_rng(seed), n) for seed in range(draws)]
            for ranks in RANKS:
                numbers = _compare_packers(drawn, ranks)
                rows.append([kind, n, ranks, *numbers])
    columns = []
    for packer in PACKERS:
        columns += [f"{packer}.{column}" for column in Packed.__struct_fields__]
    return {
        "capacity": CAPACITY,
        "draws": draws,
        "columns": ["lengths", "sequences", "ranks", "least_micro_batches", *columns],
        "rows": rows,
    }


def _compare_packers(drawn: list[np.ndarray], ranks: int) -> list[float]:
    """Return the bound of the number of micro-batches, and then the columns of every packer."""
    bounds = [least_micro_batches(lengths, CAPACITY, ranks) for lengths in drawn]
    numbers = [_mean(bounds)]
    for packer in PACKERS.values():
        results = [_measure(packer, lengths, ranks) for lengths in drawn]
        ms = statistics.median(result.ms for result in results)
        numbers += [
            _mean([result.micro_batches for result in results]),
            _mean([result.time_to_ideal for result in results]),
            _mean([result.fullest_to_capacity for result in results]),
            round(ms, 1),
        ]
    return numbers


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 4)


def _measure(packer: Packer, lengths: np.ndarray, ranks: int) -> Packed:
    flops = np.array([_forward_flops(length) for length in lengths.tolist()])
    start = time.process_time()
    shares = packer(lengths, flops, ranks)
    seconds = time.process_time() - start
    bins = list(itertools.chain.from_iterable(shares))
    placed = sorted(itertools.chain.from_iterable(bins))
    assert placed == list(range(len(lengths))), "every sequence is in one bin"
    fullest = max(int(lengths[members].sum()) for members in bins)
    ideal = least_time(flops, ranks)
    return Packed(
        micro_batches=len(bins),
        time_to_ideal=synchronous_time(shares, flops) / ideal,
        fullest_to_capacity=fullest / CAPACITY,
        ms=1000 * seconds,
    )


def _forward_flops(length: int) -> float:
    num_keys = length * (length + 1) // 2
    return SHAPE.of(length, num_keys, length)


def ours(lengths: np.ndarray, flops: np.ndarray, ranks: int) -> list[Bins]:
    """Pack with the balancer of a run."""
    return balance(lengths, flops, CAPACITY, ranks)


def areal(lengths: np.ndarray, flops: np.ndarray, ranks: int) -> list[Bins]:
    """Ask for more and more bins until their number is a multiple of `ranks`."""
    asked = ranks
    bins = _fewest_sequences(lengths, asked)
    while len(bins) % ranks and asked < len(lengths):
        asked = _round_up(max(len(bins), asked + 1), ranks)
        bins = _fewest_sequences(lengths, asked)
    return _completed(bins, flops, ranks)


def _fewest_sequences(lengths: np.ndarray, asked: int) -> Bins:
    bins: Bins = []
    tokens = np.zeros(len(lengths), np.int64)
    counts = np.zeros(len(lengths), np.int64)
    for item in np.argsort(-lengths, kind="stable").tolist():
        opened = len(bins)
        in_bins = tokens[:opened]
        has_room = in_bins + lengths[item] <= CAPACITY
        if opened < asked or not has_room.any():
            chosen = opened
            bins.append([])
        else:
            fullness = counts[:opened] * (CAPACITY + 1) + in_bins  # by sequences; of equally many, by tokens
            fullness[~has_room] = np.iinfo(np.int64).max
            chosen = int(fullness.argmin())
        bins[chosen].append(item)
        tokens[chosen] += lengths[item]
        counts[chosen] += 1
    return bins


Part = tuple[int, list[int]]  # tokens, and the sequences that end in one bin


def karmarkar_karp(lengths: np.ndarray, flops: np.ndarray, ranks: int) -> list[Bins]:
    """Begin with a partition for each sequence, and join the two of widest spread until one is left."""
    least_bins = -(-int(lengths.sum()) // CAPACITY)
    k = _round_up(least_bins, ranks)
    heap: list[tuple[int, int, list[Part]]] = []  # (−spread, first item, parts); no two have the same first item
    for item, length in enumerate(lengths.tolist()):
        heap.append((-length, item, [(length, [item])]))
    heapq.heapify(heap)
    while len(heap) > 1:
        _, first, widest = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        joined = _join_parts(widest, second, k)
        smallest = joined[-1][0] if len(joined) == k else 0
        heapq.heappush(heap, (smallest - joined[0][0], first, joined))
    _, _, whole = heap[0]
    return _completed([items for _, items in whole], flops, ranks)


def _join_parts(one: list[Part], other: list[Part], k: int) -> list[Part]:
    """Join two partitions, largest part first, in at most `k` parts: the largest meet the smallest."""
    meeting = max(0, len(one) + len(other) - k)
    alone = len(one) - meeting
    alone_there = len(other) - meeting
    parts = one[:alone] + other[:alone_there]
    for (tokens, items), (more_tokens, more_items) in zip(one[alone:], reversed(other[alone_there:]), strict=True):
        parts.append((tokens + more_tokens, items + more_items))
    return sorted(parts, key=lambda part: -part[0])


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _completed(bins: Bins, flops: np.ndarray, ranks: int) -> list[Bins]:
    """Add empty bins up to a multiple of `ranks`, and deal them as the balancer does."""
    num_missing = -len(bins) % ranks
    empty: Bins = [[] for _ in range(num_missing)]
    return deal(bins + empty, flops.tolist(), ranks)


PACKERS: dict[str, Packer] = {"arl": ours, "areal": areal, "karmarkar_karp": karmarkar_karp}


def _lognormal(rng: np.random.Generator, n: int) -> np.ndarray:
    return _clipped(rng.lognormal(8.0, 0.9, n))


def _uniform(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(1, CAPACITY + 1, n)


def _bimodal(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw lengths of which four of five are about 1000 tokens, and one of five about 24000."""
    is_short = rng.random(n) < 0.8
    short = rng.normal(1000, 200, n)
    long = rng.normal(24_000, 3000, n)
    return _clipped(np.where(is_short, short, long))


def _equal(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.full(n, 4096)


def _clipped(lengths: np.ndarray) -> np.ndarray:
    return lengths.clip(1, CAPACITY).astype(np.int64)


LENGTHS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "lognormal(8, 0.9)": _lognormal,
    "uniform(1, 32768)": _uniform,
    "bimodal": _bimodal,
    "all 4096": _equal,
}
