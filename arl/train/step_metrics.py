"""Sum the token statistics of one training step on the device, and reduce them over ranks once.

micro-batch ─► add ┐
micro-batch ─► add ┴► close_update (drops what belongs to a skipped update) ─► … ─► metrics (collective)

All that is kept of the tokens is a matrix of sums, a row for each value that an objective returns (and one for its
squares where a metric needs them), a column for each age bucket. Every metric but a maximum follows from it.
"""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from arl.config.objective_section import ObjectiveSection, Statistic
from arl.data.model_limits import Flops
from arl.launch.devices import peak_resident
from arl.metrics.names import AGE_BUCKETS, FIRST_AGES
from arl.train.micro_batch import MicroBatch, forward_flops
from arl.train.sharded_model import Update
from arl.types import MetricValue

ENTROPY = "entropy"
TOKENS_BY_AGE = "by_age/tokens"
NO_END = 2**31


class _Sums(NamedTuple):
    """Hold sums and maxima over some tokens. R rows, B age buckets, K maxima; float64."""

    sums: Tensor  # (R, B)
    maxima: Tensor  # (K,) −inf if there is no token


class StepTotals:
    """Hold sums and maxima over a step's computed loss tokens, and the results of its updates.

    Args:
        objective: declares its metrics, and how each follows from what its loss returns for each token.
    """

    def __init__(self, device: torch.device, objective: ObjectiveSection) -> None:
        self._statistics = {**objective.statistics, ENTROPY: Statistic(ENTROPY, "mean")}
        used = self._statistics.values()
        self._summed = _unique(s.value for s in used if s.reduction != "max")
        self._squared = _unique(s.value for s in used if s.reduction == "effective_sample_size")
        self._maxima = _unique(s.value for s in used if s.reduction == "max")
        self._device = device
        self._first_ages = torch.tensor(FIRST_AGES, device=device)
        self._end_ages = torch.tensor((*FIRST_AGES[1:], NO_END), device=device)
        num_rows = 1 + len(self._summed) + len(self._squared)  # the number of tokens comes first
        nothing = torch.zeros(num_rows, len(AGE_BUCKETS), dtype=torch.float64, device=device)
        no_maxima = torch.full((len(self._maxima),), -torch.inf, dtype=torch.float64, device=device)
        self._total = _Sums(nothing, no_maxima)
        self._open: list[_Sums] = []  # of the update under way
        self._updates: list[Update] = []
        self._num_skipped = 0
        self._learning_rate = 0.0

    def add(self, per_token: Mapping[str, Tensor], ages: Tensor) -> None:
        """Add the N tokens of a micro-batch.

        Args:
            per_token: (N,) of each value of the objective, and of ENTROPY.
            ages: (N,) int64, the trainer's version before the step − the version that sampled the token.
        """
        if not len(ages):
            return
        names = _unique((*self._summed, *self._maxima))
        used = {name: per_token[name].double() for name in names}
        ones = torch.ones(len(ages), dtype=torch.float64, device=self._device)
        summed = [used[name] for name in self._summed]
        squared = [used[name].square() for name in self._squared]
        rows = torch.stack([ones, *summed, *squared])
        is_old_enough = ages[:, None] >= self._first_ages
        is_young_enough = ages[:, None] < self._end_ages
        in_bucket = is_old_enough & is_young_enough  # (N, B)
        maxima = self._total.maxima
        if self._maxima:
            largest = [used[name].max() for name in self._maxima]
            maxima = torch.stack(largest)
        added = _Sums(rows @ in_bucket.double(), maxima)
        self._open.append(added)

    def close_update(self, update: Update, learning_rate: float) -> None:
        """Count the tokens added since the last update, unless this one was skipped."""
        self._learning_rate = learning_rate
        if update.is_finite:
            self._updates.append(update)
            for added in self._open:
                self._total = _joined(self._total, added)
        else:
            self._num_skipped += 1
        self._open = []

    def metrics(self) -> dict[str, MetricValue]:
        """Reduce over ranks, and return the metrics of the step. Collective.

        Returns:
            The objective's metrics and the entropy, absent where no token was computed; loss, grad_norm and
            grad_cosine/previous, the means over updates, absent where there is none; the learning rate of the last one.
        """
        metrics: dict[str, MetricValue] = {
            "learning_rate": self._learning_rate,
            "train/skipped_updates": float(self._num_skipped),
        }
        if self._updates:
            metrics["loss"] = fmean(update.loss for update in self._updates)
            metrics["grad_norm"] = fmean(update.grad_norm for update in self._updates)
        cosines = [update.cosine for update in self._updates if update.cosine is not None]
        if cosines:
            metrics["grad_cosine/previous"] = fmean(cosines)
        return metrics | self._token_metrics()

    def _token_metrics(self) -> dict[str, MetricValue]:
        """Compute every metric of tokens; none if no token was computed. Collective."""
        total = self._over_ranks()
        by_age: list[list[float]] = total.sums.tolist()
        tokens, *rows = by_age
        if not sum(tokens):
            return {}
        num_sums = len(self._summed)
        sums = dict(zip(self._summed, rows[:num_sums], strict=True))
        squares = dict(zip(self._squared, rows[num_sums:], strict=True))
        maxima = dict(zip(self._maxima, total.maxima.tolist(), strict=True))
        metrics: dict[str, MetricValue] = {TOKENS_BY_AGE: list(tokens)}
        for name, statistic in self._statistics.items():
            value = statistic.value
            if statistic.reduction == "max":
                metrics[name] = maxima[value]
                continue
            is_sample_size = statistic.reduction == "effective_sample_size"
            own_squares = squares[value] if is_sample_size else None
            computed = _reduced(tokens, sums[value], own_squares, statistic.by_age)
            if computed is not None:
                metrics[name] = computed
        return metrics

    def _over_ranks(self) -> _Sums:
        """Reduce sums and maxima over the ranks, by one collective: each rank has places of its own for its maxima."""
        world_size = dist.get_world_size()
        if world_size == 1:
            return self._total
        sums, maxima = self._total
        places = maxima.new_zeros(world_size, len(maxima))
        places[dist.get_rank()] = maxima
        both = torch.cat([sums.flatten(), places.flatten()])
        dist.all_reduce(both)
        all_sums = both[: sums.numel()]
        all_maxima = both[sums.numel() :]
        return _Sums(
            all_sums.view_as(sums),
            all_maxima.view_as(places).amax(0),
        )


def _joined(one: _Sums, other: _Sums) -> _Sums:
    """Return the sums and maxima over the tokens of both."""
    return _Sums(
        one.sums + other.sums,
        one.maxima.maximum(other.maxima),
    )


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    """Return each name once, in the order of its first use."""
    return tuple(dict.fromkeys(names))


def _reduced(tokens: list[float], sums: list[float], squares: list[float] | None, by_age: bool) -> MetricValue | None:
    """Compute a mean, or with squares an effective sample size, of each age bucket or of all tokens."""
    if not by_age:
        of_all = None if squares is None else sum(squares)
        return _quotient(sum(tokens), sum(sums), of_all)
    of_buckets = [None] * len(tokens) if squares is None else squares
    buckets = zip(tokens, sums, of_buckets, strict=True)
    return [_quotient(*bucket) for bucket in buckets]


def _quotient(tokens: float, total: float, squares: float | None) -> float | None:
    """Return Σ x / n, or with squares (Σ x)² / (n Σ x²); None if it is undefined."""
    if not tokens or squares == 0:
        return None
    if squares is None:
        return total / tokens
    return total**2 / (tokens * squares)


# Dense FLOP/s of one device in bfloat16, and as many in float16, from NVIDIA's data sheets. The first name that is part
# of the device's counts.
PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "GB200": 2500e12,
    "B200": 2250e12,
}

HALVES = (torch.bfloat16, torch.float16)


def training_flops(flops: Flops, batch: MicroBatch) -> float:
    """Return the operations of a pack's forward and backward: three times its forward.

    What checkpointing computes again is not counted.
    """
    return 3 * forward_flops(batch, flops)


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the FLOP/s that the device's maker states; None where that is not known, as on a CPU."""
    if device.type != "cuda" or dtype not in HALVES:
        return None
    name = torch.cuda.get_device_name(device)
    for known, peak in PEAKS.items():
        if known in name:
            return peak
    return None


def peak_memory(device: torch.device) -> float:
    """Return the largest number of bytes so far: allocated by torch on a GPU, resident in this process on a CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return float(peak_resident())
