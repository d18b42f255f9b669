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

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from arl.config.recipe import Objective, Train
from arl.data import msgpack_arrays
from arl.data.model_limits import model_flops
from arl.errors import TrainerError
from arl.sync.buckets import TensorSpec
from arl.train.algorithms.ppo import TokenStats, decoupled_ppo, gspo, loglinear_proximal, naive_ppo
from arl.train.cost import peak_flops, peak_memory, training_flops
from arl.train.packer import MicroBatch, Minibatch, Shard
from arl.train.rendezvous import init_ranks
from arl.train.sharded_model import ShardedModel, Update

MOST_SKIPPED = 3  # updates in a row


class Learner:
    """The trainer's state on one rank: weights, optimizer, and the version v of finished steps.

    Args:
        path: model directory to start from.
        train, objective: recipe sections.
        temperature: sampling temperature of the rollouts.
        version: v at the start.
        resumed: `path` is a checkpoint; go on with its optimizer state.
        deadline_seconds: for every collective.
        evidence: directory for the shard of a step that cannot be trained; made when there is one.
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
        evidence: Path = Path(),
    ) -> None:
        if train.threads is not None:
            torch.set_num_threads(train.threads)
        self.sharded = ShardedModel(path, train, temperature, init_ranks(deadline_seconds))
        self.train, self.objective, self.version = train, objective, version
        self._updates = version * train.minibatches
        self._evidence, self._skipped_in_a_row = evidence, 0
        self._flops = model_flops(str(path))
        if resumed:
            self.sharded.load_optimizer(Path(path))

    def step(self, shard: Shard) -> dict[str, float]:
        """Train on `shard` and become version + 1. Every rank calls it with its own shard of one step.

        Returns:
            Metrics reduced over ranks, the same on each but for the times. Token statistics are over the tokens
            that had a gradient. Those of the behavior weight are absent under naive PPO, which has none, and what is
            unknown or was skipped is absent too.

        Raises:
            TrainerError: the loss or the gradient of MOST_SKIPPED updates in a row was not finite.
        """
        assert shard.version == self.version, f"a shard for version {shard.version} at version {self.version}"
        start = time.perf_counter()
        proximal = self._proximal_pass(shard.minibatches)
        if self.sharded.device.type == "cuda":  # which may still be at it
            torch.cuda.synchronize(self.sharded.device)
        middle = time.perf_counter()
        totals = _Totals(self.sharded.device)
        for minibatch, logprobs in zip(shard.minibatches, proximal, strict=True):
            update = self._minibatch(minibatch, logprobs, totals)
            if self._skipped_in_a_row == MOST_SKIPPED:
                raise TrainerError(self._give_up(shard, update))
        metrics = totals.metrics(naive=self.objective.kind == "ppo")
        seconds = time.perf_counter() - middle  # a GPU has finished the last update, since these numbers came after it
        self.version += 1
        metrics |= {"time/proximal_s": middle - start, "time/train_s": seconds}
        return metrics | self._hardware(shard, seconds)

    def _hardware(self, shard: Shard, seconds: float) -> dict[str, float]:
        device = self.sharded.device
        done = sum(training_flops(self._flops, batch) for m in shard.minibatches for batch in m.micro_batches)
        total, memory = torch.tensor([done, peak_memory(device)], dtype=torch.float64, device=device)
        if dist.get_world_size() > 1:
            dist.all_reduce(total)
            dist.all_reduce(memory, dist.ReduceOp.MAX)
        per_rank = float(total) / dist.get_world_size() / seconds
        metrics = {"hardware/tflops": per_rank / 1e12, "hardware/memory_gb": float(memory) / 1e9}
        peak = peak_flops(device, self.sharded.dtype)
        return metrics if peak is None else metrics | {"hardware/mfu": per_rank / peak}

    def snapshot(self) -> dict[str, Tensor]:
        """Every weight in the compute dtype, copied to rank 0's CPU; empty on the others. Collective."""
        return self.sharded.full_state(self.sharded.dtype, pinned=True)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Of every `snapshot`, in its order."""
        dtype = str(self.sharded.dtype).removeprefix("torch.")
        return tuple(TensorSpec(name, dtype, tuple(p.shape)) for name, p in self.sharded.model.named_parameters())

    def config_json(self) -> str:
        """config.json of what `snapshot` returns."""
        config = copy.deepcopy(self.sharded.model.config)
        config.dtype = self.sharded.dtype
        return str(config.to_json_string())

    def _proximal_pass(self, minibatches: Sequence[Minibatch]) -> list[list[Tensor] | None]:
        """proximal_logprobs of every scored position, (M,) per micro-batch; None where the current ones serve."""
        if self.objective.kind == "ppo" or self.objective.proximal != "recompute":
            return [None] * len(minibatches)
        with torch.no_grad():
            return [None, *([self.sharded.score(mb)[0] for mb in m.micro_batches] for m in minibatches[1:])]

    def _minibatch(self, minibatch: Minibatch, proximal: list[Tensor] | None, totals: "_Totals") -> Update:
        loss_sum = torch.zeros((), device=self.sharded.device)
        for i, batch in enumerate(minibatch.micro_batches):
            loss = self._policy_loss(batch, None if proximal is None else proximal[i], minibatch, totals)
            self.sharded.backward(loss, last=i + 1 == len(minibatch.micro_batches))
            loss_sum += loss.detach()
        rate = learning_rate(self.train, self._updates)
        update = self.sharded.update(rate, loss_sum)
        totals.close_update(update, rate)
        self._updates += 1
        self._skipped_in_a_row = 0 if update.is_finite else self._skipped_in_a_row + 1
        return update

    def _policy_loss(
        self, batch: MicroBatch, proximal: Tensor | None, minibatch: Minibatch, totals: "_Totals"
    ) -> Tensor:
        """The loss of a pack, (); what it saw goes to `totals`. Rows own tokens: equal continuations share a score."""
        of_sequences = self.objective.kind == "gspo"
        terms = max(1, minibatch.loss_sequences if of_sequences else minibatch.loss_tokens)
        given = batch.behavior_logprobs, batch.advantages, batch.policy_versions, batch.sequences
        row_of, *columns = map(self.sharded.tensor, (batch.loss_scores, *given))

        def objective(logprob: Tensor, rows: slice) -> tuple[Tensor, tuple[Tensor, ...]]:
            first, end = np.searchsorted(batch.loss_scores, (rows.start, rows.stop)).tolist()
            own = row_of[first:end] - rows.start
            center = None if proximal is None else proximal[rows].index_select(0, own)
            loss, stats = self._objective(logprob.index_select(0, own), center, *(x[first:end] for x in columns))
            return loss / terms, stats

        if of_sequences:
            logprob, entropy = self.sharded.score(batch)
            loss, stats = objective(logprob, slice(0, len(logprob)))
        else:
            loss, entropy, stats = self.sharded.policy_loss(batch, objective)
        totals.add(TokenStats(*stats), entropy.index_select(0, row_of))
        return loss

    def _objective(
        self,
        current: Tensor,
        proximal: Tensor | None,
        behavior: Tensor,
        advantages: Tensor,
        policy_versions: Tensor,
        sequences: Tensor,
    ) -> tuple[Tensor, TokenStats]:
        o = self.objective
        if o.kind == "ppo":
            return naive_ppo(current, behavior, advantages, clip_low=o.clip_low, clip_high=o.clip_high)
        if o.proximal == "loglinear":
            proximal = loglinear_proximal(current, behavior, policy_versions, self.version)
        elif proximal is None:
            proximal = current.detach()
        bounds = {"clip_low": o.clip_low, "clip_high": o.clip_high, "behavior_weight_cap": o.behavior_weight_cap}
        if o.kind == "gspo":
            return gspo(current, proximal, behavior, advantages, sequences, **bounds)
        return decoupled_ppo(current, proximal, behavior, advantages, **bounds)

    def _give_up(self, shard: Shard, update: Update) -> str:
        """Keep this rank's shard, and say where it is."""
        self._evidence.mkdir(parents=True, exist_ok=True)
        file = self._evidence / f"not-finite-version-{self.version}-rank-{dist.get_rank()}.msgpack"
        file.write_bytes(msgpack_arrays.encoder().encode(shard))
        return (
            f"{update} in the step of version {self.version}, and {MOST_SKIPPED} updates in a row were skipped for "
            f"such numbers: the weights are as before them, what rank {dist.get_rank()} was given is in {file}"
        )


def learning_rate(train: Train, update: int) -> float:
    """Of the update number `update`, from 0: a linear ramp, and train.decay from the peak to its share `decay_to`."""
    ramp = (update + 1) / max(1, train.ramp_steps)
    done = min(1.0, update / max(1, train.steps * train.minibatches - 1))
    way = done if train.decay == "linear" else (1 - math.cos(math.pi * done)) / 2
    return train.learning_rate * min(1.0, ramp, 1 - (1 - train.decay_to) * way)


class _Totals:
    """Sums over a step's tokens and updates, reduced over ranks once at its end; of skipped updates, their number."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(6, dtype=torch.float64, device=device)  # the columns of `add`
        self._max_ratio = torch.zeros((), dtype=torch.float64, device=device)
        self._open: list[tuple[Tensor, Tensor]] = []  # of the update under way
        self._updates: list[Update] = []
        self._skipped, self._learning_rate = 0, 0.0

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
        self._open.append((torch.stack([c.to(torch.float32) for c in columns]).sum(1), stats.ratio.max().double()))

    def close_update(self, update: Update, learning_rate: float) -> None:
        self._learning_rate = learning_rate
        if update.is_finite:
            self._updates.append(update)
            for sums, largest in self._open:
                self._sums += sums
                self._max_ratio = torch.maximum(self._max_ratio, largest)
        else:
            self._skipped += 1
        self._open = []

    def metrics(self, naive: bool) -> dict[str, float]:
        """Token means; loss and grad_norm are means over the step's updates."""
        if dist.get_world_size() > 1:
            dist.all_reduce(self._sums)
            dist.all_reduce(self._max_ratio, dist.ReduceOp.MAX)
        count, clipped, weight, capped, kl, entropy = self._sums.tolist()
        metrics = {"learning_rate": self._learning_rate, "train/skipped_updates": float(self._skipped)}
        if self._updates:
            metrics["loss"] = sum(update.loss for update in self._updates) / len(self._updates)
            metrics["grad_norm"] = sum(update.grad_norm for update in self._updates) / len(self._updates)
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
