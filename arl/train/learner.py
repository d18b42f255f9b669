"""Run the training steps of one rank.

    Shard ─► proximal pass (no gradient, minibatches 1…) ─► for each minibatch: objective, backward, update ─► metrics
    rows of scores ─► the tokens whose score is among them ─► their columns ─► Objective.loss ─► loss
                                                                                           └► TokenLog, StepTotals

The first minibatch needs no proximal pass. Its weights are still those before the step, so its proximal_logprobs are
its own current_logprobs. An objective that does not need proximal_logprobs has no proximal pass at all.

The gradient of a half of a minibatch, its stale or its fresh tokens, is the part that flows through the
log-probabilities and entropies of these tokens. So the two sum up to the minibatch's, under any objective: ratios,
weights and clips are those of the whole.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from transformers.utils import CONFIG_NAME

from arl.config.objective_section import SAMPLED
from arl.config.recipe import AdvantageSection, ObjectiveSection, Train
from arl.config.teacher_section import TOP_IDS
from arl.data.model_limits import model_flops
from arl.errors import TrainerError
from arl.models.model_files import base_of, with_dtype
from arl.sync.buckets import TensorSpec
from arl.train.algorithms.objective import Objective, TokenColumns
from arl.train.algorithms.terms import PARTS_METRICS, ratio_parts
from arl.train.critic import CRITIC
from arl.train.micro_batch import MicroBatch
from arl.train.optimizer import schedule_of
from arl.train.packing import PLACES, Minibatch, Shard
from arl.train.placed_batch import place_batch
from arl.train.rank_columns import PROXIMAL, ModelsBeside
from arl.train.scored_model import RankColumns
from arl.train.sharded_model import ShardedModel, Update
from arl.train.sharding import compute_deterministically, init_ranks
from arl.train.step_metrics import ENTROPY, StepTotals, TokenLog, hardware_metrics, moment, seconds_between
from arl.train.training_copy import TrainingState
from arl.types import MetricValue

MAX_SKIPPED = 3  # updates in a row
CURRENT = "current_logprobs"
IS_KEPT = "is_kept"


class Half(NamedTuple):
    """Name the tokens of one half of a minibatch."""

    oldest_fresh: int  # age; stale tokens are older
    is_stale: bool

    def only(self, column: Tensor, ages: Tensor) -> Tensor:
        """Return a column (N,) through which no gradient flows but at the tokens of this half."""
        is_own = (ages > self.oldest_fresh) == self.is_stale
        return column.where(is_own, column.detach())


class Learner:
    """Hold the trainer's state on one rank: the models, the optimizer, and the version v of finished steps.

    Args:
        path: model directory to start from.
        train, objective: recipe sections.
        temperature: sampling temperature of the rollouts.
        version: v at the start.
        resumed: `path` is a checkpoint; continue with its optimizer state.
        deadline_seconds: for every collective.
        advantage: recipe section, if ranks compute it by train.critic.
        oldest_age: of a token, versions; read if the versions that sampled tokens are needed.
        seed: of LoRA adapters.
        publishes_adapters: engines are given these alone, and not merged weights.
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
        advantage: AdvantageSection | None = None,
        oldest_age: int = 0,
        seed: int = 0,
        publishes_adapters: bool = False,
    ) -> None:
        if train.threads is not None:
            torch.set_num_threads(train.threads)
        if train.deterministic:
            compute_deterministically()
        base = base_of(path) if resumed and train.lora else path
        self.policy = ShardedModel(base, train, temperature, init_ranks(deadline_seconds), seed)
        self.policy.publishes_adapters = publishes_adapters
        assert isinstance(objective, Objective), "the recipe has checked it"
        self.objective: Objective = objective
        given = (Path(path), train, objective, advantage, temperature, version, resumed, oldest_age)
        self.beside = ModelsBeside(self.policy, *given)
        self.critic = self.beside.critic
        self.version = version
        self._schedule = schedule_of(train)
        self._updates = version * train.minibatches
        self._scales_by_ess = train.scale_by_ess
        self._halves_every = train.halves_every
        self._parts_every = train.ratio_parts_every
        self._skipped_in_a_row = 0
        self._logged: tuple[str, ...] = (CURRENT, PROXIMAL) if PROXIMAL in objective.needed_columns else (CURRENT,)
        penalty = objective.active_reference
        if self.critic is not None or (penalty and penalty.place == "reward"):
            self._logged += ("advantages",)
        self._begin()
        self.flops = model_flops(str(path))
        if resumed:
            self.policy.load_optimizer(Path(path))

    def step(self, shard: Shard[MicroBatch]) -> dict[str, MetricValue]:
        """Train on `shard` and become version + 1. Every rank calls it with its own shard of one step.

        Afterwards `log` has the log-probabilities of every loss token whose place the shard knows.

        Returns:
            Metrics reduced over ranks, the same on each rank except for the times. The objective's metrics are over
            the tokens that were computed. They are absent if none was computed, or if all updates were skipped.

        Raises:
            TrainerError: the loss or the gradient of MAX_SKIPPED updates in a row was not finite.
        """
        assert shard.version == self.version, f"a shard for version {shard.version} at version {self.version}"
        device = self.policy.device
        start = moment(device)
        self._begin()
        computed = self.beside.columns(shard.minibatches, self.version, self._takes_apart)
        middle = moment(device)
        stale_fresh = self._stale_fresh_cosine(shard.minibatches[0], computed[0])
        begin = moment(device)
        self.beside.keep(self.version)
        for number, (minibatch, columns) in enumerate(zip(shard.minibatches, computed, strict=True)):
            self._progress = number / len(shard.minibatches)
            self._update(minibatch, columns)
        metrics = self._totals.metrics()
        seconds = seconds_between(begin, moment(device))
        self._refuse_skipped(self._totals.updates)
        if metrics.get("behavior_weight/mean") == 0.0 or metrics.get("objective/left_out") == 1.0:
            raise TrainerError(
                "the objective left out every token of a step; make [low, high] of objective.weight wider, or "
                "objective.second_moment larger"
            )
        self.version += 1
        self.beside.follow()
        if self.policy.loss_scale.is_dynamic:
            metrics["train/loss_scale"] = self.policy.loss_scale.value
        metrics["time/proximal_s"] = seconds_between(start, middle)
        metrics["time/train_s"] = seconds
        if stale_fresh is not None:
            metrics["grad_cosine/stale_fresh"] = stale_fresh
            metrics["time/halves_s"] = seconds_between(middle, begin)
        if self.critic is not None:
            metrics |= self.critic.train(shard.minibatches)
        packs = [pack for minibatch in shard.minibatches for pack in minibatch.micro_batches]
        return metrics | hardware_metrics(packs, self.flops, seconds, device, self.policy.dtype)

    def _begin(self) -> None:
        self.log = TokenLog()
        statistics = self.objective.statistics | (PARTS_METRICS if self._takes_apart else {})
        self._measured = tuple(sorted({statistic.value for statistic in statistics.values()}))
        self._totals = StepTotals(self.policy.device, statistics)
        self._progress = 0.0  # share of the step's updates that the weights have made

    def _is_due(self, every: int) -> bool:
        return bool(every) and (self.version + 1) % every == 0

    @property
    def _takes_apart(self) -> bool:
        """Return whether this step measures the parts of the ratio."""
        return self._is_due(self._parts_every)

    @property
    def _uses_proximal(self) -> bool:
        return PROXIMAL in self.objective.needed_columns or self._takes_apart

    def _update(self, minibatch: Minibatch[MicroBatch], computed: Sequence[RankColumns]) -> None:
        """Make one update: forward and backward of every micro-batch, then AdamW. Collective."""
        self._kept = torch.zeros((), device=self.policy.device)  # tokens that the objective left in
        loss_sum = self._backward(minibatch, computed)
        is_warming = self.critic is not None and self.version < self.critic.settings.warmup_steps
        rate: float | Tensor = 0.0 if is_warming else self._schedule.rate(self._updates)
        if self._scales_by_ess:
            rate = rate * self._totals.effective_sample_size().sqrt()
        update = self.policy.update(rate, loss_sum, self._narrowing(minibatch))
        self._totals.close_update(update, rate)
        self._updates += 1

    def _narrowing(self, minibatch: Minibatch[MicroBatch]) -> Tensor | None:
        """Return loss tokens of all ranks / those that the objective left in, (); None: all count. Collective."""
        if not self.objective.narrows:
            return None
        dist.all_reduce(self._kept)
        return minibatch.loss_tokens / self._kept.clamp(min=1)

    def _refuse_skipped(self, updates: Sequence[Update]) -> None:
        """Count updates that were skipped in a row; reading them waits for the device.

        Raises:
            TrainerError: there were MAX_SKIPPED.
        """
        for update in updates:
            if update.is_finite:
                self._skipped_in_a_row = 0
            elif not update.is_absorbed:
                self._skipped_in_a_row += 1
            if self._skipped_in_a_row == MAX_SKIPPED:
                raise TrainerError(
                    f"{update} in the step of version {self.version}, and {MAX_SKIPPED} updates in a row were skipped "
                    "for such numbers; lower train.learning_rate"
                )

    def snapshot(self) -> dict[str, Tensor]:
        """Copy what engines are given to rank 0's CPU; returns an empty dict on other ranks. Collective."""
        return self.policy.copied(self.policy.published())

    def training_state(self) -> dict[str, TrainingState]:
        """Copy this rank's share of each trained model and its optimizer, by its place in a checkpoint. Collective."""
        critic = {} if self.critic is None else {CRITIC: self.critic.model.training_state()}
        return {"": self.policy.training_state()} | critic

    def write(self, states: Mapping[str, TrainingState], path: Path) -> None:
        """Write this rank's `states` to `path`. Not collective; see ShardedModel.write."""
        for place, state in states.items():
            model = self.policy if self.critic is None or not place else self.critic.model
            model.write(state, path / place)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Return name, dtype and shape of every tensor in a `snapshot`, in its order."""
        return self.policy.published()

    def config_json(self) -> str:
        """Return the config.json that belongs to a `snapshot`."""
        config = with_dtype(self.policy.description[CONFIG_NAME], str(self.policy.dtype).removeprefix("torch."))
        return config.decode()

    def first_minibatch(self, num_minibatches: int) -> int:
        """Return the minibatch of a step that is computed first: 0, or 1 if a proximal pass comes before it."""
        return int(self._uses_proximal and num_minibatches > 1 and not self.beside.score_all)

    def _backward(
        self, minibatch: Minibatch[MicroBatch], computed: Sequence[RankColumns], half: Half | None = None
    ) -> Tensor:
        """Run forward and backward of every micro-batch; return this rank's loss, (). Collective.

        Args:
            computed: what ranks computed, of each micro-batch.
            half: gives the loss the gradient of these tokens alone, and reports none of them; None: of all.
        """
        loss_sum = torch.zeros((), device=self.policy.device)
        num_micro_batches = len(minibatch.micro_batches)
        for i, batch in enumerate(minibatch.micro_batches):
            loss = self._policy_loss(batch, computed[i], minibatch, half)
            self.policy.backward(loss, last=i + 1 == num_micro_batches)
            loss_sum += loss.detach() / self.policy.loss_scale.value
        return loss_sum

    def _stale_fresh_cosine(self, first: Minibatch[MicroBatch], computed: Sequence[RankColumns]) -> float | None:
        """Compute the cosine between the gradients of the first minibatch's stale and fresh half. Collective.

        Weights, optimizer and totals stay as they are.

        Args:
            computed: see _backward.

        Returns:
            None where nobody asks for it in this step, where all tokens are in one half, or where a gradient is 0.
        """
        if not self._is_due(self._halves_every):
            return None
        cut = self._even_cut(first)
        if cut is None:
            return None
        gradients = []
        for is_stale in (True, False):
            self._backward(first, computed, Half(cut, is_stale))
            gradients.append(self.policy.take_gradient())
        stale, fresh = gradients
        return self.policy.cosine(stale, fresh)

    def _even_cut(self, minibatch: Minibatch[MicroBatch]) -> int | None:
        """Return the age after which the tokens of all ranks are cut into halves as equal as possible. Collective.

        Returns:
            None if all of them have one age.
        """
        ages = np.concatenate([self.version - batch.columns["policy_versions"] for batch in minibatch.micro_batches])
        oldest = torch.tensor(ages.max(initial=0), device=self.policy.device)
        dist.all_reduce(oldest, dist.ReduceOp.MAX)
        counts = torch.from_numpy(np.bincount(ages, minlength=int(oldest) + 1)).to(self.policy.device)
        dist.all_reduce(counts)
        *fresh_tokens, num_tokens = counts.cpu().cumsum(0).tolist()  # if the cut comes after age 0, 1, …
        cuts = [age for age, fresh in enumerate(fresh_tokens) if fresh]
        return min(cuts, key=lambda age: abs(num_tokens - 2 * fresh_tokens[age]), default=None)

    def _policy_loss(
        self, batch: MicroBatch, computed: RankColumns, minibatch: Minibatch[MicroBatch], half: Half | None = None
    ) -> Tensor:
        """Compute the loss of a micro-batch, () and scaled, and count its tokens in the step's totals and log.

        Args:
            computed: what ranks computed of its loss tokens.
            half: see _backward.
        """
        placed = place_batch(batch, self.policy.device)
        score_of = placed.arrays["loss_scores"]  # (N,) equal continuations share a score
        columns = {name: placed.arrays[name] for name in (*batch.columns, "sequences") if name != PLACES} | computed
        ages = self.version - columns["policy_versions"]
        scale = self.policy.loss_scale.value / self._divisor(minibatch)
        lengths = token_counts(columns["sequences"]) if self.objective.normalizer == "sequence_means" else None
        kept_names = (*self._measured, *self._logged, *((IS_KEPT,) if self.objective.narrows else ()))

        def row_loss(
            logprob: Tensor, entropy: Tensor, rows: slice, top: Tensor | None = None
        ) -> tuple[Tensor, tuple[Tensor, ...]]:
            """Compute the loss of the tokens whose score is among `rows`, and their values that are kept, (n,) each.

            The fused head calls it for one block of rows after another, with logprob and entropy (rows,) float32.
            """
            first, end = np.searchsorted(batch.loss_scores, (rows.start, rows.stop)).tolist()
            own = score_of[first:end] - rows.start
            current = logprob.index_select(0, own)
            entropy_of = entropy.index_select(0, own)
            given: dict[str, Any] = {name: column[first:end] for name, column in columns.items()}
            if self._uses_proximal and PROXIMAL not in given:
                given[PROXIMAL] = current.detach()  # the weights are still those before the step
            if half is not None:
                current = half.only(current, ages[first:end])
                entropy_of = half.only(entropy_of, ages[first:end])
                top = None if top is None else half.only(top.T, ages[first:end]).T
            given |= {"current_logprobs": current, "entropy": entropy_of, "top_logprobs": top}
            tokens = TokenColumns(version=self.version, progress=self._progress, **given)
            loss, per_token = self.objective.total(tokens)
            if lengths is not None:
                loss = loss / lengths[first:end]
            found = {**given, CURRENT: current.detach(), **per_token}
            if self._takes_apart:
                found |= ratio_parts(found[CURRENT], given[PROXIMAL], given[SAMPLED], given["behavior_logprobs"])
            return loss.sum() * scale, tuple(found[name] for name in kept_names)

        if TOP_IDS in computed or self.objective.needs_sequences:
            logprob, entropy, top = self.policy.score_with(placed, computed.get(TOP_IDS))
            loss, kept = row_loss(logprob, entropy, slice(0, len(logprob)), top)
        else:
            loss, entropy, kept = self.policy.policy_loss(placed, row_loss)
        if half is None:
            values = dict(zip(kept_names, kept, strict=True))
            measured = {name: values[name] for name in self._measured}
            if self.objective.narrows:
                self._kept += values[IS_KEPT].sum()
            self._totals.add({**measured, ENTROPY: entropy.detach().index_select(0, score_of)}, ages)
            if PLACES in batch.columns:
                self.log.add(batch.columns[PLACES], {name: values[name] for name in self._logged})
        return loss

    def _divisor(self, minibatch: Minibatch[MicroBatch]) -> float:
        """Return what the summed loss of a minibatch is divided by; see ObjectiveSection.normalizer."""
        if self.objective.normalizer == "tokens":
            return max(1, minibatch.loss_tokens)
        return max(1, minibatch.loss_sequences) * (self.objective.constant or 1)


def token_counts(sequences: Tensor) -> Tensor:
    """Count for each of N loss tokens those of its trajectory, which lies whole in a micro-batch: (N,) float32."""
    ones = torch.ones(len(sequences), device=sequences.device)
    return torch.zeros_like(ones).index_add(0, sequences, ones).index_select(0, sequences)
