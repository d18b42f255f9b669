"""Keep the log-probabilities of a step's loss tokens on the device until the step is done."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from arl.train.micro_batch import MicroBatch
from arl.train.trained_tokens import TokenLogprobs

CURRENT = "current_logprobs"
PROXIMAL = "proximal_logprobs"


class TokenLog:
    """Collect the log-probabilities of one step of one rank, of micro-batches whose places are known."""

    def __init__(self) -> None:
        self._places: list[np.ndarray] = []
        self._columns: dict[str, list[Tensor]] = {CURRENT: [], PROXIMAL: []}

    def add(self, batch: MicroBatch, columns: Mapping[str, Tensor]) -> None:
        """Add the loss tokens of a micro-batch.

        Args:
            columns: CURRENT and, if the objective needs it, PROXIMAL, each (N,) without gradient.
        """
        if batch.places is None:
            return
        self._places.append(batch.places)
        for name, collected in self._columns.items():
            if name in columns:
                collected.append(columns[name])

    def logprobs(self) -> TokenLogprobs | None:
        """Return what was collected, on the CPU; None if that is nothing. Waits for the device."""
        if not self._places:
            return None
        current, proximal = map(_joined, self._columns.values())
        assert current is not None, "every micro-batch has its current log-probabilities"
        return TokenLogprobs(np.concatenate(self._places), current, proximal)


def _joined(columns: list[Tensor]) -> np.ndarray | None:
    if not columns:
        return None
    joined: np.ndarray = torch.cat(columns).to("cpu", torch.float32).numpy()
    return joined
