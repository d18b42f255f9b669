"""Sum the token statistics of one training step on the device, and reduce them over ranks once.

micro-batch ─► add ┐
micro-batch ─► add ┴► close_update (drops what belongs to a skipped update) ─► … ─► metrics (collective)
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from arl.config.objective_section import ObjectiveSection
from arl.train.sharded_model import Update

ENTROPY = "entropy"


class StepTotals:
    """Holds sums and maxima over a step's computed loss tokens, and the results of its updates.

    Args:
        objective: declares the names of its metrics and how each is reduced.
    """

    def __init__(self, device: torch.device, objective: ObjectiveSection) -> None:
        declared = {**objective.metrics, ENTROPY: "mean"}
        self._means = [name for name, reduction in declared.items() if reduction == "mean"]
        self._maxima = [name for name, reduction in declared.items() if reduction == "max"]
        self._device = device
        num_sums = 1 + len(self._means)  # the number of tokens comes first
        self._sums = torch.zeros(num_sums, dtype=torch.float64, device=device)
        self._largest = self._no_maxima()
        self._open: list[tuple[Tensor, Tensor]] = []  # sums and maxima of the update under way
        self._updates: list[Update] = []
        self._num_skipped = 0
        self._learning_rate = 0.0

    def add(self, per_token: Mapping[str, Tensor], entropy: Tensor) -> None:
        """Add the tokens of a micro-batch.

        Args:
            per_token: (N,) of each of the objective's metrics.
            entropy: (N,).
        """
        if not len(entropy):
            return
        columns = {**per_token, ENTROPY: entropy}
        ones = torch.ones_like(entropy)
        counted = [ones, *(columns[name] for name in self._means)]
        rows = [column.to(torch.float32) for column in counted]
        sums = torch.stack(rows).sum(1)
        largest = self._no_maxima()
        for i, name in enumerate(self._maxima):
            largest[i] = columns[name].max()
        self._open.append((sums, largest))

    def close_update(self, update: Update, learning_rate: float) -> None:
        """Count the tokens added since the last update, unless this one was skipped."""
        self._learning_rate = learning_rate
        if update.is_finite:
            self._updates.append(update)
            for sums, largest in self._open:
                self._sums += sums
                self._largest = torch.maximum(self._largest, largest)
        else:
            self._num_skipped += 1
        self._open = []

    def metrics(self) -> dict[str, float]:
        """Reduce over ranks, and return the metrics of the step. Collective.

        Returns:
            The objective's metrics and the entropy, absent where no token was computed; loss and grad_norm, the means
            over updates, absent where all were skipped; the learning rate of the last update.
        """
        if dist.get_world_size() > 1:
            dist.all_reduce(self._sums)
            dist.all_reduce(self._largest, dist.ReduceOp.MAX)
        metrics = {
            "learning_rate": self._learning_rate,
            "train/skipped_updates": float(self._num_skipped),
        }
        if self._updates:
            num_updates = len(self._updates)
            metrics["loss"] = sum(update.loss for update in self._updates) / num_updates
            metrics["grad_norm"] = sum(update.grad_norm for update in self._updates) / num_updates
        num_tokens, *sums = self._sums.tolist()
        if num_tokens:
            for name, total in zip(self._means, sums, strict=True):
                metrics[name] = total / num_tokens
            for name, largest in zip(self._maxima, self._largest.tolist(), strict=True):
                metrics[name] = largest
        return metrics

    def _no_maxima(self) -> Tensor:
        return torch.full(
            (len(self._maxima),),
            -torch.inf,
            dtype=torch.float64,
            device=self._device,
        )
