"""Compares the balancer with those of others, on sequences of four kinds of lengths of at most 32768 tokens.

    lengths ─► each packer's bins ─► completed to a multiple of R, dealt as ours ─► count, synchronous time, fullest bin

next_fit        in the given order; a sequence that does not fit begins the next bin
areal           Algorithm 1 of AReaL, arXiv 2505.24298: longest first; a new bin while there are fewer than asked for,
                or if it fits nowhere; else to the bin of fewest sequences that has room. Again, with more bins asked
                for, until their number is a multiple of R
karmarkar_karp  k-way largest differencing on tokens (Karmarkar and Karp 1982), k = ⌈Σ/C⌉ rounded up to a multiple of
                R; it ignores the capacity, so its fullest bin is reported

Synchronous time and ideal are defined in arl.train.balancer, FLOPs in arl.data.model_limits. Every packer sees the
whole batch of all ranks, and its bins are dealt in sorted waves, which is better than its own code does.
"""

import heapq
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from arl.data.model_limits import Flops
from arl.train.balancer import Bins, balance, deal, least_micro_batches, least_time, synchronous_time

CAPACITY = 32_768
SIZES, RANKS = (128, 512, 2048, 8192), (1, 8, 64)
LAYERS, HIDDEN, KEY_VALUE, MLP, VOCAB = 28, 1536, 256, 8960, 151_936  # a Qwen2 of 1.5 billion parameters
SHAPE = Flops(
    token=2.0 * LAYERS * (2 * HIDDEN * (HIDDEN + KEY_VALUE) + 3 * HIDDEN * MLP),
    key=4.0 * LAYERS * HIDDEN,
    score=2.0 * HIDDEN * VOCAB,
)
COLUMNS = ("micro_batches", "time_to_ideal", "fullest_to_capacity", "ms")  # of each packer; milliseconds of one core

Packer = Callable[[np.ndarray, np.ndarray, int], list[Bins]]  # lengths, FLOPs, ranks ─► [rank][micro-batch][item]


def bench_packing(draws: int) -> dict[str, Any]:
    """Measure every case: means over `draws`, and the median of milliseconds. `columns` names the numbers of a row."""
    rows = []
    for kind, draw in LENGTHS.items():
        for n in SIZES:
            drawn = [draw(np.random.default_rng(seed), n) for seed in range(draws)]
            rows += [_row(kind, n, ranks, drawn) for ranks in RANKS]
    columns = [f"{packer}.{column}" for packer in PACKERS for column in COLUMNS]
    return {
        "capacity": CAPACITY,
        "draws": draws,
        "columns": ["lengths", "sequences", "ranks", "least_micro_batches", *columns],
        "rows": rows,
    }


def _row(kind: str, n: int, ranks: int, drawn: list[np.ndarray]) -> list[Any]:
    row: list[Any] = [kind, n, ranks, _mean([least_micro_batches(lengths, CAPACITY, ranks) for lengths in drawn])]
    for packer in PACKERS.values():
        measured = [_measure(packer, lengths, ranks) for lengths in drawn]
        *means, milliseconds = zip(*measured, strict=True)
        row += [*map(_mean, means), round(statistics.median(milliseconds), 1)]
    return row


def _mean(values: Any) -> float:
    return round(statistics.fmean(values), 4)


def _measure(packer: Packer, lengths: np.ndarray, ranks: int) -> tuple[float, ...]:
    """Return the numbers of COLUMNS."""
    flops = np.array([SHAPE.of(s, s * (s + 1) // 2, s) for s in lengths.tolist()])
    start = time.process_time()
    shares = packer(lengths, flops, ranks)
    milliseconds = 1000 * (time.process_time() - start)
    assert sorted(i for share in shares for members in share for i in members) == list(range(len(lengths)))
    fullest = max(int(lengths[members].sum()) for share in shares for members in share)
    time_to_ideal = synchronous_time(shares, flops) / least_time(flops, ranks)
    return sum(map(len, shares)), time_to_ideal, fullest / CAPACITY, milliseconds


def ours(lengths: np.ndarray, flops: np.ndarray, ranks: int) -> list[Bins]:
    return balance(lengths, flops, CAPACITY, ranks)


def next_fit(lengths: np.ndarray, flops: np.ndarray, ranks: int) -> list[Bins]:
    return _completed(list(_cut(lengths.tolist())), flops, ranks)


def _cut(lengths: list[int]) -> Iterator[list[int]]:
    members, tokens = list[int](), 0
    for i, length in enumerate(lengths):
        if tokens + length > CAPACITY:
            yield members
            members, tokens = [], 0
        members.append(i)
        tokens += length
    yield members


def areal(lengths: np.ndarray, flops: np.ndarray, ranks: int) -> list[Bins]:
    bins, asked = _fewest_sequences(lengths, ranks), ranks
    while len(bins) % ranks and asked < len(lengths):
        asked = -(-max(len(bins), asked + 1) // ranks) * ranks
        bins = _fewest_sequences(lengths, asked)
    return _completed(bins, flops, ranks)


def _fewest_sequences(lengths: np.ndarray, asked: int) -> Bins:
    bins: Bins = []
    tokens, counts = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    for i in np.argsort(-lengths, kind="stable").tolist():
        has_room = tokens[: len(bins)] + lengths[i] <= CAPACITY
        if len(bins) < asked or not has_room.any():
            b = len(bins)
            bins.append([])
        else:  # of equally few sequences, the least full
            b = int(np.where(has_room, counts[: len(bins)] * (CAPACITY + 1) + tokens[: len(bins)], 1 << 62).argmin())
        bins[b].append(i)
        tokens[b] += lengths[i]
        counts[b] += 1
    return bins


def karmarkar_karp(lengths: np.ndarray, flops: np.ndarray, ranks: int) -> list[Bins]:
    k = -(-int(lengths.sum()) // (CAPACITY * ranks)) * ranks
    # A state is its parts that are not empty, (tokens, items), largest first; the two of widest spread are joined.
    states = [(-length, i, [(length, [i])]) for i, length in enumerate(lengths.tolist())]
    heapq.heapify(states)
    while len(states) > 1:
        (_, i, a), (_, _, b) = heapq.heappop(states), heapq.heappop(states)
        both = max(0, len(a) + len(b) - k)  # so many of the smallest of one meet the smallest of the other, crosswise
        joined = zip(a[len(a) - both :], reversed(b[len(b) - both :]), strict=True)
        parts = a[: len(a) - both] + b[: len(b) - both] + [(x + y, p + q) for (x, p), (y, q) in joined]
        parts.sort(key=lambda part: -part[0])
        least = parts[-1][0] if len(parts) == k else 0
        heapq.heappush(states, (least - parts[0][0], i, parts))
    return _completed([items for _, items in states[0][2]], flops, ranks)


def _completed(bins: Bins, flops: np.ndarray, ranks: int) -> list[Bins]:
    return deal(bins + [[] for _ in range(-len(bins) % ranks)], flops.tolist(), ranks)


PACKERS: dict[str, Packer] = {"arl": ours, "next_fit": next_fit, "areal": areal, "karmarkar_karp": karmarkar_karp}


def _clipped(lengths: np.ndarray) -> np.ndarray:
    return lengths.clip(1, CAPACITY).astype(np.int64)


def _bimodal(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw lengths of which four of five are about 1000 tokens, and one of five about 24000."""
    return np.where(rng.random(n) < 0.8, rng.normal(1000, 200, n), rng.normal(24_000, 3000, n))


LENGTHS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "lognormal(8, 0.9)": lambda rng, n: _clipped(rng.lognormal(8.0, 0.9, n)),
    "uniform(1, 32768)": lambda rng, n: rng.integers(1, CAPACITY + 1, n),
    "bimodal": lambda rng, n: _clipped(_bimodal(rng, n)),
    "all 4096": lambda rng, n: np.full(n, 4096),
}
