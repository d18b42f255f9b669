"""Sum the token statistics of one training step on the device, and reduce them over ranks at its end.

micro-batch ─► add ┐
micro-batch ─► add ┴► close_update (drops what belongs to a skipped update) ─► … ─► metrics (collective)

All that is kept of the tokens is a matrix of sums, a row for each value that an objective returns (and one for its
squares where a metric needs them), a column for each age bucket. Every metric but a maximum follows from it.
"""

import time
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from arl.config.objective_section import ESS, Statistic
from arl.data.model_limits import Flops
from arl.launch.devices import peak_resident
from arl.metrics.names import AGE_BUCKETS, FIRST_AGES
from arl.train.micro_batch import MicroBatch, forward_flops
from arl.train.packing import TokenLogprobs
from arl.train.sharded_model import Update
from arl.types import MetricValue

ENTROPY = "entropy"
TOKENS_BY_AGE = "by_age/tokens"
NO_END = 2**31


class TokenLog:
    """Collect what one rank computes in a step of the loss tokens whose places are known."""

    def __init__(self) -> None:
        self._places: list[np.ndarray] = []
        self._columns: dict[str, list[Tensor]] = {}

    def add(self, places: np.ndarray, columns: Mapping[str, Tensor]) -> None:
        """Add columns of a micro-batch's loss tokens, (N,) each without gradient."""
        self._places.append(places)
        for name, column in columns.items():
            self._columns.setdefault(name, []).append(column)

    def logprobs(self) -> TokenLogprobs | None:
        """Return what was collected, on the CPU; None if that is nothing. Waits for the device."""
        if not self._places:
            return None
        columns = {name: torch.cat(parts).to("cpu", torch.float32).numpy() for name, parts in self._columns.items()}
        return TokenLogprobs(np.concatenate(self._places), columns)


class StepTotals:
    """Hold sums and maxima over a step's computed loss tokens, and the results of its updates.

    Args:
        statistics: how each metric follows from what is computed of each token.
    """

    def __init__(self, device: torch.device, statistics: Mapping[str, Statistic]) -> None:
        self._statistics = {**statistics, ENTROPY: Statistic(ENTROPY, "mean")}
        used = self._statistics.values()
        summed = [(s.value, False) for s in used if s.reduction != "max"]
        squared = [(s.value, True) for s in used if s.reduction == "effective_sample_size"]
        self._rows = tuple(dict.fromkeys(summed + squared))  # (value, is it squared); the number of tokens comes first
        self._maxima = tuple(dict.fromkeys(s.value for s in used if s.reduction == "max"))
        self._device = device
        self._first_ages = torch.tensor(FIRST_AGES, device=device)
        self._end_ages = torch.tensor((*FIRST_AGES[1:], NO_END), device=device)
        shape = (1 + len(self._rows), len(AGE_BUCKETS))
        self._sums = torch.zeros(shape, dtype=torch.float64, device=device)
        self._largest = torch.full((len(self._maxima),), -torch.inf, dtype=torch.float64, device=device)
        self._before = self._sums, self._largest  # the update under way
        self.updates: list[Update] = []
        self._learning_rate: float | Tensor = 0.0

    def add(self, per_token: Mapping[str, Tensor], ages: Tensor) -> None:
        """Add the N tokens of a micro-batch.

        Args:
            per_token: (N,) of each value of the objective, and of ENTROPY.
            ages: (N,) int64, the trainer's version before the step − the version that sampled the token.
        """
        if not len(ages):
            return
        rows = [torch.ones(len(ages), dtype=torch.float64, device=self._device)]
        for name, is_squared in self._rows:
            value = per_token[name].double()
            rows.append(value.square() if is_squared else value)
        in_bucket = (ages[:, None] >= self._first_ages) & (ages[:, None] < self._end_ages)  # (N, B)
        self._sums = self._sums + torch.stack(rows) @ in_bucket.double()
        if self._maxima:
            self._largest = self._largest.maximum(torch.stack([per_token[v].double().max() for v in self._maxima]))

    def effective_sample_size(self) -> Tensor:
        """Compute that of the behavior weights of the update under way, () float32; the host does not wait. Collective.

        It is 1 where no token has a weight: then there is no gradient either.
        """
        value = self._statistics[ESS].value
        rows = [0, 1 + self._rows.index((value, False)), 1 + self._rows.index((value, True))]
        added = (self._sums - self._before[0])[rows].sum(1)
        dist.all_reduce(added)
        tokens, total, squares = added
        size: Tensor = total.square() / (tokens * squares)
        return size.where(squares > 0, 1.0).float()

    def close_update(self, update: Update, learning_rate: float | Tensor) -> None:
        """Count the tokens added since the last update, unless this one was skipped."""
        self._learning_rate = learning_rate
        self.updates.append(update)
        sums, largest = self._before
        self._sums = sums.where(update.is_skipped, self._sums)
        self._largest = largest.where(update.is_skipped, self._largest)
        self._before = self._sums, self._largest

    def metrics(self) -> dict[str, MetricValue]:
        """Reduce over ranks, and return the metrics of the step. Collective.

        Returns:
            The objective's metrics and the entropy, absent where no token was computed; loss, grad_norm and
            grad_cosine/previous, the means over updates, absent where there is none; the learning rate of the last one.
        """
        made = [update for update in self.updates if update.is_finite]
        metrics: dict[str, MetricValue] = {
            "learning_rate": float(self._learning_rate),
            "train/skipped_updates": float(len(self.updates) - len(made)),
        }
        if made:
            metrics["loss"] = fmean(update.loss for update in made)
            metrics["grad_norm"] = fmean(update.grad_norm for update in made)
        cosines = [update.cosine for update in made if update.cosine is not None]
        if cosines:
            metrics["grad_cosine/previous"] = fmean(cosines)
        return metrics | self._token_metrics()

    def _token_metrics(self) -> dict[str, MetricValue]:
        """Compute every metric of tokens; none if no token was computed. Collective."""
        dist.all_reduce(self._sums)
        dist.all_reduce(self._largest, dist.ReduceOp.MAX)
        tokens, *rows = self._sums.tolist()
        if not sum(tokens):
            return {}
        sums: dict[tuple[str, bool], list[float]] = dict(zip(self._rows, rows, strict=True))
        maxima = dict(zip(self._maxima, self._largest.tolist(), strict=True))
        metrics: dict[str, MetricValue] = {TOKENS_BY_AGE: list(tokens)}
        for name, (value, reduction, by_age) in self._statistics.items():
            if reduction == "max":
                metrics[name] = maxima[value]
                continue
            columns = [tokens, sums[value, False]]
            if reduction == "effective_sample_size":
                columns.append(sums[value, True])
            if by_age:
                metrics[name] = [_quotient(*bucket) for bucket in zip(*columns, strict=True)]
                continue
            of_all = _quotient(*map(sum, columns))
            if of_all is not None:
                metrics[name] = of_all
        return metrics


def _quotient(tokens: float, total: float, squares: float | None = None) -> float | None:
    """Return Σ x / n, or with squares (Σ x)² / (n Σ x²); None if it is undefined."""
    if not tokens or squares == 0:
        return None
    return total / tokens if squares is None else total**2 / (tokens * squares)


def moment(device: torch.device) -> Any:
    """Return the instant at which the device has done what it was given so far; nothing waits for it."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def seconds_between(start: Any, end: Any) -> float:
    """Return the seconds between two moments of a device; waits for the later one."""
    if isinstance(end, float):
        return float(end - start)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


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


def hardware_metrics(
    packs: Iterable[MicroBatch], flops: Flops, seconds: float, device: torch.device, dtype: torch.dtype
) -> dict[str, float]:
    """Compute FLOP/s and memory of a step of these micro-batches, reduced over ranks. Collective.

    A forward and backward take three forwards; what checkpointing computes again is not counted. Memory is what torch
    has allocated at most on a GPU, and what was resident at most in this process on a CPU.
    """
    is_cuda = device.type == "cuda"
    done = sum(3 * forward_flops(pack, flops) for pack in packs)
    used = torch.cuda.max_memory_allocated(device) if is_cuda else peak_resident()
    total, memory = torch.tensor([done, float(used)], dtype=torch.float64, device=device)
    dist.all_reduce(total)
    dist.all_reduce(memory, dist.ReduceOp.MAX)
    per_rank = float(total) / dist.get_world_size() / seconds
    metrics = {"hardware/tflops": per_rank / 1e12, "hardware/memory_gb": float(memory) / 1e9}
    device_name = torch.cuda.get_device_name(device) if is_cuda and dtype != torch.float32 else ""
    peaks = [peak for known, peak in PEAKS.items() if known in device_name]
    if peaks:
        metrics["hardware/mfu"] = per_rank / peaks[0]
    return metrics
