"""Compute log-probabilities with a Hugging Face model that FSDP2 shards over the ranks.

    PlacedBatch ─► score()       ─► logprob, entropy of each scored position
                ─► policy_loss() ─► loss, entropy, statistics

The head is fused with what follows it, so no logits are stored. It runs inside the root's forward, where FSDP2 has its
weight gathered.
"""

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.fsdp import register_fsdp_forward_method
from transformers import PreTrainedModel

from arl.config.recipe import Train
from arl.kernels.linear_logprob import linear_logprob, linear_logprobs, linear_top_logprobs
from arl.kernels.linear_policy_loss import RowLoss, linear_policy_loss
from arl.kernels.rows import tune_rows
from arl.models.flash import choose_flash
from arl.models.packed import PackedContext
from arl.train.micro_batch import MicroBatch
from arl.train.placed_batch import LAYOUT, PlacedBatch, place_batch
from arl.train.sharded_weights import ShardedWeights

T = TypeVar("T")
# Columns that ranks compute with models of their own, by name: (N,) float32 each, of a micro-batch's loss tokens; of a
# teacher's likeliest tokens (N, k). They never travel, and reach the objective beside those of the batch, or in their
# place.
RankColumns = dict[str, Tensor]


class ScoredModel(ShardedWeights):
    """Score the tokens of micro-batches. Frozen, it is a reference, a teacher, or an older version of the policy.

    Args:
        path: model directory.
        train: how to shard and compute.
        temperature: of the sampling policy; logprobs are of log_softmax(logits / temperature).
        device: of this rank.
        frozen, seed: see ShardedWeights.
    """

    def __init__(
        self,
        path: str | Path,
        train: Train,
        temperature: float,
        device: torch.device,
        frozen: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(path, train, device, frozen, seed)
        self.temperature = temperature
        self.attention = choose_flash(device, self.dtype)
        self.model.scored = types.MethodType(_scored, self.model)
        register_fsdp_forward_method(self.model, "scored")
        self._logits_dtype = torch.float32 if train.head == "float32" else self.dtype
        tune_rows(self.model.config.vocab_size, self._logits_dtype, self.dtype, device)

    def score(self, batch: PlacedBatch) -> tuple[Tensor, Tensor]:
        """Run one forward of the pack; return logprob and entropy of its M scored positions, each (M,) float32.

        The logprobs carry a gradient, for losses that look at whole sequences. Losses that are sums over tokens are
        cheaper by policy_loss.
        """
        targets = batch.arrays["score_targets"]

        def scores(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            return linear_logprob(hidden, weight, targets, self.temperature, self._logits_dtype)

        return self._forward(batch, scores)

    def score_with(self, batch: PlacedBatch, others: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Do what `score` does, and return the logprobs of other tokens at each loss token too, (N, k) of ids (N, k).

        Loss tokens that share a score have the same others.
        """
        if others is None:
            return *self.score(batch), None
        targets = batch.arrays["score_targets"]
        score_of = batch.arrays["loss_scores"]
        ids = others.new_zeros(len(targets), others.shape[1]).index_copy(0, score_of, others)

        def scores(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            columns = torch.cat([targets[:, None], ids], 1)
            return linear_logprobs(hidden, weight, columns, self.temperature, self._logits_dtype)

        logprobs, entropy = self._forward(batch, scores)
        return logprobs[:, 0], entropy, logprobs[:, 1:].index_select(0, score_of)

    def top_logprobs(self, batch: MicroBatch, k: int, vocab: int) -> tuple[Tensor, Tensor]:
        """Return the k likeliest tokens below `vocab` at each loss token, and their logprobs, (N, k) each."""
        placed = place_batch(batch, self.device)

        def top(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            return linear_top_logprobs(hidden, weight, k, vocab, self.temperature, self._logits_dtype)

        ids, logprobs = self._forward(placed, top)
        score_of = placed.arrays["loss_scores"]
        return ids.index_select(0, score_of), logprobs.index_select(0, score_of)

    def score_loss_tokens(self, batch: MicroBatch) -> Tensor:
        """Return the log-probabilities of a micro-batch's loss tokens, (N,)."""
        placed = place_batch(batch, self.device)
        logprobs, _ = self.score(placed)
        return logprobs.index_select(0, placed.arrays["loss_scores"])

    def policy_loss(self, batch: PlacedBatch, row_loss: RowLoss) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Compute a loss that is a sum over scored positions; the head computes its gradient in the forward.

        Returns:
            The loss (), with gradient; entropy (M,) float32; what `row_loss` kept, joined in row order.
        """
        targets = batch.arrays["score_targets"]

        def loss(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
            return linear_policy_loss(hidden, weight, targets, row_loss, self.temperature, self._logits_dtype)

        total, _, entropy, stats = self._forward(batch, loss)
        return total, entropy, stats

    def _forward(self, batch: PlacedBatch, head: Callable[[Tensor, Tensor], T]) -> T:
        """Return what `head` makes of the hidden states (M, D) of the scored positions and its weight (V, D)."""
        arrays = batch.arrays
        host = batch.host
        layout = [arrays[name] for name in LAYOUT]
        context = PackedContext(host.query_offsets, host.key_offsets, host.key_indices, layout)
        inputs = {
            "input_ids": arrays["token_ids"][None],
            "position_ids": arrays["position_ids"][None],
            "context": context,
        }
        out: T = self.model.scored(inputs, arrays["score_positions"], head)
        assert context.calls == self.model.config.num_hidden_layers, "a layer did not ask the pack's context"
        return out


def _scored(
    model: PreTrainedModel, inputs: dict[str, Any], positions: Tensor, head: Callable[[Tensor, Tensor], T]
) -> T:
    """Run the model up to `head`, which takes the place of the logits: a second forward method of the root."""
    out = model.model(**inputs, use_cache=False)
    hidden = out.last_hidden_state[0]  # (T, D)
    scored = hidden.index_select(0, positions)  # (M, D)
    return head(scored, model.lm_head.weight)
