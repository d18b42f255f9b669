"""Compute an objective's loss over the tokens of a micro-batch, and keep what the step reports of each.

    rows of scores ─► RowLoss: the tokens whose score is among them ─► their columns ─► objective.loss ─► loss
                                                                                     └► what is kept ─► TokenLog
    halves         split the loss tokens of a minibatch into a stale and a fresh half, by age

The gradient of a half is the part of the loss's gradient that flows through the log-probabilities and entropies of its
tokens. So the two gradients sum up to that of the minibatch, under any objective: ratios, weights and clips are those
of the whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from arl.train.algorithms.objective import Objective, TokenColumns
from arl.train.micro_batch import MicroBatch
from arl.train.packing import PLACES, TokenLogprobs

CURRENT = "current_logprobs"
PROXIMAL = "proximal_logprobs"
# Columns that ranks compute with models of their own, by name: (M,) float32, of a micro-batch's scores. They never
# travel, and reach the objective beside those of the batch.
RankColumns = dict[str, Tensor]


class Half(NamedTuple):
    """Name the tokens of one half."""

    oldest_fresh: int  # age; stale tokens are older
    is_stale: bool

    def only(self, column: Tensor, ages: Tensor) -> Tensor:
        """Return a column (N,) through which no gradient flows but at the tokens of this half."""
        is_own = (ages > self.oldest_fresh) == self.is_stale
        return column.where(is_own, column.detach())


def halves(batches: Sequence[MicroBatch], version: int, device: torch.device) -> tuple[Half, Half] | None:
    """Return the stale and the fresh half of a minibatch; None if all its tokens have one age. Collective.

    They are cut between two ages, so that they are as equal in tokens of all ranks as possible.

    Args:
        batches: of this rank.
        version: v, the trainer's version before the step.
    """
    ages = np.concatenate([version - batch.columns["policy_versions"] for batch in batches])
    tokens = _tokens_of_age(ages, device)
    *fresh_tokens, num_tokens = np.cumsum(tokens).tolist()  # if the cut comes after age 0, 1, …
    cuts = [age for age, fresh in enumerate(fresh_tokens) if fresh]
    if not cuts:
        return None
    most_even = min(cuts, key=lambda age: abs(num_tokens - 2 * fresh_tokens[age]))
    return Half(most_even, is_stale=True), Half(most_even, is_stale=False)


def _tokens_of_age(ages: np.ndarray, device: torch.device) -> np.ndarray:
    """Count the tokens of age 0, 1, … of all ranks, (oldest + 1,) int64. Collective."""
    if dist.get_world_size() == 1:
        return np.bincount(ages, minlength=1)
    oldest = torch.tensor(ages.max(initial=0), device=device)
    dist.all_reduce(oldest, dist.ReduceOp.MAX)
    counts = torch.from_numpy(np.bincount(ages, minlength=int(oldest) + 1)).to(device)
    dist.all_reduce(counts)
    return counts.cpu().numpy()


@dataclass(frozen=True)
class RowLoss:
    """Compute the loss of some rows of a micro-batch; the fused head calls it for one block of rows after another."""

    objective: Objective
    version: int  # v, before the step
    loss_scores: np.ndarray  # (N,) ascending, see MicroBatch
    score_of: Tensor  # (N,) int64: which of the scores is a token's; equal continuations share one
    columns: Mapping[str, Tensor]  # (N,) each, of the batch
    computed: RankColumns
    half: Half | None  # gives the loss the gradient of these tokens alone; None: of all
    kept: Sequence[str]  # values that are returned for each token
    scale: float  # by which the loss is multiplied

    def __call__(self, logprob: Tensor, entropy: Tensor, rows: slice) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Compute the loss of the tokens whose score is among `rows`.

        Args:
            logprob, entropy: of these rows' scores, (rows,) float32.

        Returns:
            The loss, (); and the values of these tokens that are kept, (n,) each.
        """
        first, end = np.searchsorted(self.loss_scores, (rows.start, rows.stop)).tolist()
        own = self.score_of[first:end] - rows.start
        current = logprob.index_select(0, own)
        entropy_of = entropy.index_select(0, own)
        given = {name: column[first:end] for name, column in self.columns.items()}
        for name, column in self.computed.items():
            given[name] = column[rows].index_select(0, own)
        if PROXIMAL in self.objective.needed_columns and PROXIMAL not in given:
            given[PROXIMAL] = current.detach()  # the weights are still those before the step
        if self.half is not None:
            ages = self.version - given["policy_versions"]
            current = self.half.only(current, ages)
            entropy_of = self.half.only(entropy_of, ages)
        tokens = TokenColumns(current_logprobs=current, entropy=entropy_of, version=self.version, **given)
        loss, per_token = self.objective.loss(tokens)
        found = {**given, CURRENT: current.detach(), **per_token}
        return loss * self.scale, tuple(found[name] for name in self.kept)


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
        places = batch.columns.get(PLACES)
        if places is None:
            return
        self._places.append(places)
        for name, collected in self._columns.items():
            if name in columns:
                collected.append(columns[name])

    def logprobs(self) -> TokenLogprobs | None:
        """Return what was collected, on the CPU; None if that is nothing. Waits for the device."""
        if not self._places:
            return None
        proximal = self._columns[PROXIMAL]
        return TokenLogprobs(
            places=np.concatenate(self._places),
            current=_on_cpu(self._columns[CURRENT]),
            proximal=_on_cpu(proximal) if proximal else None,
        )


def _on_cpu(columns: list[Tensor]) -> np.ndarray:
    joined: np.ndarray = torch.cat(columns).to("cpu", torch.float32).numpy()
    return joined
