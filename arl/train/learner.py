"""One training step of one rank.

    Shard ─► proximal pass (no gradient, minibatches 1…) ─► for each minibatch: objective, backward, update ─► metrics

The first minibatch needs no proximal pass: its weights are still those before the step, so its proximal_logprobs are
its own current_logprobs.
"""

import copy
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from arl.errors import TrainerError
from arl.recipe import Objective, Train
from arl.train.fsdp import ShardedModel, init_ranks
from arl.train.objectives import TokenStats, decoupled_ppo, loglinear_proximal, naive_ppo
from arl.train.packer import MicroBatch, Minibatch, Shard


class Learner:
    """The trainer's state on one rank: weights, optimizer, and the version v of finished steps.

    Args:
        path: model directory to start from.
        train, objective: recipe sections.
        temperature: sampling temperature of the rollouts.
        version: v at the start.
        resumed: `path` is a checkpoint; go on with its optimizer state.
        deadline_seconds: for every collective.
    """

    def __init__(
        self,
        path: str | Path,
        train: Train,
        objective: Objective,
        temperature: float = 1.0,
        version: int = 0,
        resumed: bool = False,
        deadline_seconds: float = 600.0,
    ) -> None:
        if train.threads is not None:
            torch.set_num_threads(train.threads)
        self.sharded = ShardedModel(path, train, temperature, init_ranks(deadline_seconds))
        self.train, self.objective, self.version = train, objective, version
        self._updates = version * train.minibatches
        if resumed:
            self.sharded.load_optimizer(Path(path))

    def step(self, shard: Shard) -> dict[str, float]:
        """Train on `shard` and become version + 1. Every rank calls it with its own shard of one step.

        Returns:
            Metrics reduced over ranks, the same on each but for the times. Token statistics are over the tokens
            that had a gradient. Those of the behavior weight are absent under naive PPO, which has none.

        Raises:
            TrainerError: a loss or gradient that is not finite.
        """
        assert shard.version == self.version, f"a shard for version {shard.version} at version {self.version}"
        start = time.perf_counter()
        proximal = self._proximal_pass(shard.minibatches)
        middle = time.perf_counter()
        totals = _Totals(self.sharded.device)
        for minibatch, logprobs in zip(shard.minibatches, proximal, strict=True):
            self._minibatch(minibatch, logprobs, totals)
        self.version += 1
        metrics = totals.metrics(naive=self.objective.kind == "ppo")
        metrics["time/proximal_s"] = middle - start
        metrics["time/train_s"] = time.perf_counter() - middle
        return metrics

    def snapshot(self) -> dict[str, Tensor]:
        """Every weight in the compute dtype, copied to rank 0's CPU; empty on the others. Collective."""
        return self.sharded.full_state(self.sharded.dtype)

    def config_json(self) -> str:
        """config.json of what `snapshot` returns."""
        config = copy.deepcopy(self.sharded.model.config)
        config.dtype = self.sharded.dtype
        return str(config.to_json_string())

    def _proximal_pass(self, minibatches: Sequence[Minibatch]) -> list[list[Tensor] | None]:
        """proximal_logprobs of every loss token, (N,) per micro-batch; None where the current ones serve."""
        if self.objective.kind == "ppo" or self.objective.proximal != "recompute":
            return [None] * len(minibatches)
        with torch.no_grad():
            return [None, *([self._logprobs(mb)[0] for mb in m.micro_batches] for m in minibatches[1:])]

    def _logprobs(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Logprob and entropy at every loss token, (N,) each."""
        logprob, entropy = self.sharded.score(batch)
        index = self.sharded.tensor(batch.loss_scores)
        return logprob.index_select(0, index), entropy.index_select(0, index)

    def _minibatch(self, minibatch: Minibatch, proximal: list[Tensor] | None, totals: "_Totals") -> None:
        loss_sum = 0.0
        for i, batch in enumerate(minibatch.micro_batches):
            current, entropy = self._logprobs(batch)
            loss, stats = self._objective(current, None if proximal is None else proximal[i], batch)
            loss = loss / max(1, minibatch.loss_tokens)
            self.sharded.backward(loss, last=i + 1 == len(minibatch.micro_batches))
            loss_sum += loss.item()
            totals.add(stats, entropy)
        if not math.isfinite(loss_sum):
            raise TrainerError(f"the loss is {loss_sum} in the step of version {self.version}")
        totals.learning_rate = learning_rate(self.train, self._updates)
        try:
            totals.add_update(loss_sum, self.sharded.update(totals.learning_rate))
        except TrainerError as error:
            raise TrainerError(f"{error} in the step of version {self.version}, loss {loss_sum}") from error

        self._updates += 1

    def _objective(self, current: Tensor, proximal: Tensor | None, batch: MicroBatch) -> tuple[Tensor, TokenStats]:
        o, tensor = self.objective, self.sharded.tensor
        behavior, advantages = tensor(batch.behavior_logprobs), tensor(batch.advantages)
        if o.kind == "ppo":
            return naive_ppo(current, behavior, advantages, clip_low=o.clip_low, clip_high=o.clip_high)
        if o.proximal == "loglinear":
            proximal = loglinear_proximal(current, behavior, tensor(batch.policy_versions), self.version)
        return decoupled_ppo(
            current,
            current.detach() if proximal is None else proximal,
            behavior,
            advantages,
            clip_low=o.clip_low,
            clip_high=o.clip_high,
            behavior_weight_cap=o.behavior_weight_cap,
        )


def learning_rate(train: Train, update: int) -> float:
    """Of the update number `update`, from 0: a linear ramp, and a linear way from the peak to its share `decay_to`."""
    ramp = (update + 1) / max(1, train.ramp_steps)
    done = min(1.0, update / max(1, train.steps * train.minibatches - 1))
    return train.learning_rate * min(1.0, ramp, 1 - (1 - train.decay_to) * done)


class _Totals:
    """Sums over a step's tokens and updates, reduced over ranks once at its end."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(7, dtype=torch.float64, device=device)  # the six columns of `add`, then the loss
        self._max_ratio = torch.zeros((), dtype=torch.float64, device=device)
        self._grad_norms: list[float] = []
        self.learning_rate = 0.0

    def add(self, stats: TokenStats, entropy: Tensor) -> None:
        if not len(entropy):
            return
        columns = [
            torch.ones_like(entropy),
            stats.clipped,
            stats.behavior_weight,
            stats.capped,
            stats.kl,
            entropy,
        ]
        self._sums[:6] += torch.stack([c.to(torch.float32) for c in columns]).sum(1)
        self._max_ratio = torch.maximum(self._max_ratio, stats.ratio.max().double())

    def add_update(self, loss: float, grad_norm: float) -> None:
        self._sums[6] += loss
        self._grad_norms.append(grad_norm)

    def metrics(self, naive: bool) -> dict[str, float]:
        """Token means; loss and grad_norm are means over the step's updates."""
        if dist.get_world_size() > 1:
            dist.all_reduce(self._sums)
            dist.all_reduce(self._max_ratio, dist.ReduceOp.MAX)
        count, clipped, weight, capped, kl, entropy, loss = self._sums.tolist()
        updates = len(self._grad_norms)
        metrics = {
            "loss": loss / updates,
            "grad_norm": sum(self._grad_norms) / updates,
            "learning_rate": self.learning_rate,
        }
        if not count:  # every advantage was 0: there is nothing to say of tokens that nobody computed
            return metrics
        metrics["ratio/clip_fraction"] = clipped / count
        metrics["ratio/max"] = float(self._max_ratio)
        metrics["entropy"] = entropy / count
        if not naive:
            metrics["behavior_weight/mean"] = weight / count
            metrics["behavior_weight/capped_fraction"] = capped / count
            metrics["kl/behavior_proximal"] = kl / count
        return metrics
