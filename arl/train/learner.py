"""Run the training steps of one rank.

    Shard ─► proximal pass (no gradient, minibatches 1…) ─► for each minibatch: objective, backward, update ─► metrics

The first minibatch needs no proximal pass. Its weights are still those before the step, so its proximal_logprobs are
its own current_logprobs. An objective that does not need proximal_logprobs has no proximal pass at all.
"""

import copy
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from arl.config.recipe import ObjectiveSection, Train
from arl.data.model_limits import model_flops
from arl.errors import TrainerError
from arl.sync.buckets import TensorSpec
from arl.train.algorithms.objective import Objective
from arl.train.micro_batch import MicroBatch
from arl.train.optimizer import schedule_of
from arl.train.packing import PLACES, Minibatch, Shard
from arl.train.policy_loss import CURRENT, PROXIMAL, Half, RankColumns, RowLoss, TokenLog, halves
from arl.train.sharded_model import ShardedModel
from arl.train.sharding import compute_deterministically, init_ranks
from arl.train.step_metrics import ENTROPY, StepTotals, hardware_metrics
from arl.types import MetricValue

MAX_SKIPPED = 3  # updates in a row


class Learner:
    """Hold the trainer's state on one rank: the models, the optimizer, and the version v of finished steps.

    The policy is the only model today. A frozen reference or a critic stands beside it, and fills further RankColumns.

    Args:
        path: model directory to start from.
        train, objective: recipe sections.
        temperature: sampling temperature of the rollouts.
        version: v at the start.
        resumed: `path` is a checkpoint; continue with its optimizer state.
        deadline_seconds: for every collective.
    """

    def __init__(
        self,
        path: str | Path,
        train: Train,
        objective: ObjectiveSection,
        temperature: float = 1.0,
        version: int = 0,
        resumed: bool = False,
        deadline_seconds: float = 600.0,
    ) -> None:
        if train.threads is not None:
            torch.set_num_threads(train.threads)
        if train.deterministic:
            compute_deterministically()
        self.policy = ShardedModel(path, train, temperature, init_ranks(deadline_seconds))
        assert isinstance(objective, Objective), "the recipe has checked it"
        self.objective: Objective = objective
        self.version = version
        self._schedule = schedule_of(train)
        self._updates = version * train.minibatches
        self._halves_every = train.halves_every
        self._skipped_in_a_row = 0
        self.flops = model_flops(str(path))
        if resumed:
            self.policy.load_optimizer(Path(path))

    def step(self, shard: Shard[MicroBatch], log: TokenLog | None = None) -> dict[str, MetricValue]:
        """Train on `shard` and become version + 1. Every rank calls it with its own shard of one step.

        Args:
            log: receives the log-probabilities of every loss token whose place the shard knows.

        Returns:
            Metrics reduced over ranks, the same on each rank except for the times. The objective's metrics are over
            the tokens that were computed. They are absent if none was computed, or if all updates were skipped.

        Raises:
            TrainerError: the loss or the gradient of MAX_SKIPPED updates in a row was not finite.
        """
        assert shard.version == self.version, f"a shard for version {shard.version} at version {self.version}"
        start = time.perf_counter()
        computed = self._rank_columns(shard.minibatches)
        if self.policy.device.type == "cuda":  # the pass was only launched
            torch.cuda.synchronize(self.policy.device)
        middle = time.perf_counter()
        stale_fresh = self._stale_fresh_cosine(shard.minibatches[0])
        begin = time.perf_counter()
        metrics = self._train(shard, computed, log)
        seconds = time.perf_counter() - begin  # reading the metrics has waited for the last update on a GPU
        self.version += 1
        if self.policy.loss_scale.is_dynamic:
            metrics["train/loss_scale"] = self.policy.loss_scale.value
        metrics["time/proximal_s"] = middle - start
        metrics["time/train_s"] = seconds
        if stale_fresh is not None:
            metrics["grad_cosine/stale_fresh"] = stale_fresh
            metrics["time/halves_s"] = begin - middle
        packs = [pack for minibatch in shard.minibatches for pack in minibatch.micro_batches]
        return metrics | hardware_metrics(packs, self.flops, seconds, self.policy.device, self.policy.dtype)

    def _train(
        self, shard: Shard[MicroBatch], computed: Sequence[Sequence[RankColumns]], log: TokenLog | None
    ) -> dict[str, MetricValue]:
        """Make one update for each minibatch: forward and backward of every micro-batch, then AdamW. Collective."""
        totals = StepTotals(self.policy.device, self.objective)
        for minibatch, columns in zip(shard.minibatches, computed, strict=True):
            loss_sum = self._backward(minibatch, columns, totals, log)
            rate = self._schedule.rate(self._updates)
            update = self.policy.update(rate, loss_sum)
            totals.close_update(update, rate)
            self._updates += 1
            if update.is_finite:
                self._skipped_in_a_row = 0
            elif not self.policy.loss_scale.absorbs(update.has_overflowed):
                self._skipped_in_a_row += 1
            if self._skipped_in_a_row == MAX_SKIPPED:
                raise TrainerError(
                    f"{update} in the step of version {self.version}, and {MAX_SKIPPED} updates in a row were skipped "
                    "for such numbers: the weights are as before them; lower train.learning_rate"
                )
        return totals.metrics()

    def snapshot(self) -> dict[str, Tensor]:
        """Copy every weight in the compute dtype to rank 0's CPU; returns an empty dict on other ranks. Collective."""
        return self.policy.full_state(self.policy.dtype)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Return name, dtype and shape of every tensor in a `snapshot`, in its order."""
        return self.policy.tensors(self.policy.dtype)

    def config_json(self) -> str:
        """Return the config.json that belongs to a `snapshot`."""
        config = copy.deepcopy(self.policy.model.config)
        config.dtype = self.policy.dtype
        return str(config.to_json_string())

    def first_minibatch(self, num_minibatches: int) -> int:
        """Return the minibatch of a step that is computed first: 0, or 1 if a proximal pass comes before it."""
        return int(PROXIMAL in self.objective.needed_columns and num_minibatches > 1)

    def _rank_columns(self, minibatches: Sequence[Minibatch[MicroBatch]]) -> list[list[RankColumns]]:
        """Compute the columns that come from models of the ranks: for each micro-batch of each minibatch."""
        found = [_no_columns(minibatch) for minibatch in minibatches]
        if PROXIMAL not in self.objective.needed_columns:
            return found
        with torch.no_grad():
            for columns, minibatch in zip(found[1:], minibatches[1:], strict=True):
                for own, batch in zip(columns, minibatch.micro_batches, strict=True):
                    own[PROXIMAL], _ = self.policy.score(batch)
        return found

    def _backward(
        self,
        minibatch: Minibatch[MicroBatch],
        computed: Sequence[RankColumns],
        totals: StepTotals,
        log: TokenLog | None = None,
        half: Half | None = None,
    ) -> Tensor:
        """Run forward and backward of every micro-batch; return this rank's loss, (). Collective."""
        loss_sum = torch.zeros((), device=self.policy.device)
        num_micro_batches = len(minibatch.micro_batches)
        for i, batch in enumerate(minibatch.micro_batches):
            loss = self._policy_loss(batch, computed[i], minibatch, totals, log, half)
            self.policy.backward(loss, last=i + 1 == num_micro_batches)
            loss_sum += loss.detach() / self.policy.loss_scale.value
        return loss_sum

    def _stale_fresh_cosine(self, first: Minibatch[MicroBatch]) -> float | None:
        """Compute the cosine between the gradients of the first minibatch's stale and fresh half. Collective.

        Weights, optimizer and totals stay as they are.

        Returns:
            None where nobody asks for it in this step, where all tokens are in one half, or where a gradient is 0.
        """
        every = self._halves_every
        if not every or (self.version + 1) % every:
            return None
        device = self.policy.device
        both = halves(first.micro_batches, self.version, device)
        if both is None:
            return None
        gradients = []
        for half in both:
            self._backward(first, _no_columns(first), StepTotals(device, self.objective), half=half)
            gradients.append(self.policy.take_gradient())
        stale, fresh = gradients
        return self.policy.cosine(stale, fresh)

    def _policy_loss(
        self,
        batch: MicroBatch,
        computed: RankColumns,
        minibatch: Minibatch[MicroBatch],
        totals: StepTotals,
        log: TokenLog | None = None,
        half: Half | None = None,
    ) -> Tensor:
        """Compute the loss of a micro-batch, () and scaled, and add its token statistics to `totals` and `log`.

        Args:
            computed: what ranks computed of its scored positions.
            half: gives the loss the gradient of these tokens alone; None: of all.
        """
        score_of = self.policy.tensor(batch.loss_scores)
        columns = {name: self.policy.tensor(array) for name, array in batch.columns.items() if name != PLACES}
        columns["sequences"] = self.policy.tensor(batch.sequences)
        names = self._kept_names(with_log=PLACES in batch.columns)
        by_tokens = self.objective.normalizer == "tokens"
        num_terms = minibatch.loss_tokens if by_tokens else minibatch.loss_sequences
        row_loss = RowLoss(
            objective=self.objective,
            version=self.version,
            loss_scores=batch.loss_scores,
            score_of=score_of,
            columns=columns,
            computed=computed,
            half=half,
            kept=names,
            scale=self.policy.loss_scale.value / max(1, num_terms),
        )
        if self.objective.scope == "sequence":
            logprob, entropy = self.policy.score(batch)
            loss, kept = row_loss(logprob, entropy, slice(0, len(logprob)))
            entropy = entropy.detach()
        else:
            loss, entropy, kept = self.policy.policy_loss(batch, row_loss)
        per_token = dict(zip(names, kept, strict=True))
        of_tokens = per_token | {ENTROPY: entropy.index_select(0, score_of)}
        totals.add(of_tokens, ages=self.version - columns["policy_versions"])
        if log is not None:
            log.add(batch, per_token)
        return loss

    def _kept_names(self, with_log: bool) -> tuple[str, ...]:
        """Name what is kept of each token: what metrics are made of and, `with_log`, its log-probabilities."""
        values = sorted({statistic.value for statistic in self.objective.statistics.values()})
        if with_log:
            values += [CURRENT, PROXIMAL] if PROXIMAL in self.objective.needed_columns else [CURRENT]
        return tuple(values)


def _no_columns(minibatch: Minibatch[MicroBatch]) -> list[RankColumns]:
    """Return an empty record for each micro-batch, none of which need be joined yet."""
    return [{} for _ in range(len(minibatch.micro_batches))]
