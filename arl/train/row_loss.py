"""Compute an objective's loss over the rows of a micro-batch's head, whichever rows are scored together.

rows of scores ─► the tokens whose score is among them ─► their columns ─► objective.loss ─► loss, and what is kept
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from arl.train.algorithms.objective import Objective, TokenColumns
from arl.train.gradient_halves import Half
from arl.train.micro_batch import MicroBatch
from arl.train.token_log import CURRENT, PROXIMAL


@dataclass(frozen=True)
class RowLoss:
    """Compute the loss of some rows of a micro-batch; the fused head calls it for one block of rows after another."""

    objective: Objective
    version: int  # v, before the step
    batch: MicroBatch
    score_of: Tensor  # (N,) int64: which of the scores is a token's; equal continuations share one
    columns: Mapping[str, Tensor]  # (N,) each: what the objective is given, without log-probabilities of these weights
    proximal: Tensor | None  # (M,) of the scores; None: the current ones serve, if the objective asks for them
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
        first, end = np.searchsorted(self.batch.loss_scores, (rows.start, rows.stop)).tolist()
        own = self.score_of[first:end] - rows.start
        current = logprob.index_select(0, own)
        entropy_of = entropy.index_select(0, own)
        given = {name: column[first:end] for name, column in self.columns.items()}
        if self.proximal is not None:
            given[PROXIMAL] = self.proximal[rows].index_select(0, own)
        elif PROXIMAL in self.objective.needed_columns:  # the weights are still those before the step
            given[PROXIMAL] = current.detach()
        if self.half is not None:
            ages = self.version - given["policy_versions"]
            current = self.half.only(current, ages)
            entropy_of = self.half.only(entropy_of, ages)
        tokens = TokenColumns(
            current_logprobs=current,
            entropy=entropy_of,
            version=self.version,
            **given,
        )
        loss, per_token = self.objective.loss(tokens)
        found = {**given, CURRENT: current.detach(), **per_token}
        return loss * self.scale, tuple(found[name] for name in self.kept)
