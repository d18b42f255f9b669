"""Train a critic beside the policy: a second sharded model, with one number for each token in place of its logits.

    estimate, before the updates: forward ─► V ─► GAE on this rank, of whole trajectories ─► whitened over all ranks
                                                 └► R = A + V                              └► column `advantages`
    train, after the policy's: for each minibatch forward, value loss, backward, update

V of a token is read from the hidden state that predicts it, so it knows nothing of the token itself.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from arl.config.objective_section import AdvantageSection
from arl.config.train_section import CriticSection, Train
from arl.errors import TrainerError
from arl.models.load import check_weights, empty_model
from arl.models.model_files import local_copy, stored_tensors
from arl.train.algorithms.advantage import Advantage, EpisodeColumns
from arl.train.algorithms.gae import value_loss
from arl.train.micro_batch import MicroBatch
from arl.train.optimizer import schedule_of
from arl.train.packing import Minibatch, advantages_per_token
from arl.train.placed_batch import PlacedBatch, place_batch
from arl.train.scored_model import RankColumns
from arl.train.sharded_model import ShardedModel, Update
from arl.train.step_metrics import moment, seconds_between
from arl.types import MetricValue

CRITIC = "critic"  # its directory in a checkpoint
HEAD = "lm_head.weight"
ADVANTAGES = "advantages"  # as the batch brings them: each token's reward


def give_value_head(model: PreTrainedModel) -> None:
    """Let a model of the meta device have one output, (1, D) in place of its head."""
    model.config.tie_word_embeddings = False
    model.lm_head = torch.nn.Linear(model.config.hidden_size, 1, bias=False, device="meta")


class ValueModel(ShardedModel):
    """Compute a value of each loss token. Its directory is a causal language model's, or one that it has written."""

    def empty(self, path: str | Path) -> tuple[PreTrainedModel, tuple[str, ...]]:
        """See ShardedWeights. The head, (1, D), is new unless the files hold one."""
        model = empty_model(path)
        stored = stored_tensors(path).get(HEAD)
        is_new = stored is None or stored.shape[0] != 1
        if is_new:
            check_weights(model, path)
        give_value_head(model)
        if not is_new:
            check_weights(model, path)
        return model, (HEAD,) if is_new else ()

    def values(self, batch: PlacedBatch) -> Tensor:
        """Run one forward of the pack; return V of its loss tokens, (N,) float32 with gradient."""

        def head(hidden: Tensor, weight: Tensor) -> Tensor:
            return hidden.float() @ weight[0].float()

        return self._forward(batch, head).index_select(0, batch.arrays["loss_scores"])

    def reshard(self) -> None:
        """Free the gathered weights, which would stay until the next backward."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


class Critic:
    """Hold the critic of one rank.

    Args:
        path: what the policy starts from: a checkpoint that holds a critic if `resumed`.
        train, settings, advantage: recipe sections; `settings` is train.critic.
        version: of the policy at the start.
    """

    def __init__(
        self,
        path: Path,
        train: Train,
        settings: CriticSection,
        advantage: AdvantageSection,
        device: torch.device,
        version: int,
        resumed: bool,
    ) -> None:
        self.settings = settings
        assert isinstance(advantage, Advantage), "the recipe has checked it"
        self._advantage: Advantage = advantage
        own_train = train.model_copy(update={"learning_rate": settings.learning_rate, "lora": None})
        own_path = path / CRITIC if resumed else local_copy(settings.path or path)
        self.model = ValueModel(own_path, own_train, 1.0, device)
        if resumed:
            self.model.load_optimizer(own_path)
        self._schedule = schedule_of(own_train)
        self._updates = version * train.minibatches
        self._old: list[list[tuple[Tensor, Tensor]]] = []  # V and R of each micro-batch of each minibatch
        self._estimated: dict[str, MetricValue] = {}

    @torch.no_grad()
    def estimate(self, minibatches: Sequence[Minibatch[MicroBatch]], found: Sequence[Sequence[RankColumns]]) -> None:
        """Fill the columns `values` and `advantages` of each micro-batch's loss tokens. Collective."""
        self._old = []
        for minibatch, of_minibatch in zip(minibatches, found, strict=True):
            old = []
            for batch, own in zip(minibatch.micro_batches, of_minibatch, strict=True):
                placed = place_batch(batch, self.model.device)
                own["values"] = self.model.values(placed)
                rewards = own.get(ADVANTAGES, placed.arrays[ADVANTAGES])
                own[ADVANTAGES] = self._advantages(batch, rewards, own["values"])
                old.append((own["values"], own["values"] + own[ADVANTAGES]))
            self._old.append(old)
        self.model.reshard()
        self._whiten([own for of_minibatch in found for own in of_minibatch])

    def _advantages(self, batch: MicroBatch, rewards: Tensor, values: Tensor) -> Tensor:
        """Compute the advantages of a micro-batch, (N,), before they are whitened."""
        positions = batch.position_ids[batch.score_positions[batch.loss_scores]]
        order = np.lexsort((positions, batch.sequences))  # one trajectory's tokens after the other's
        rewards_of, values_of = torch.stack([rewards, values]).cpu().numpy()[:, order]
        lengths = np.bincount(batch.sequences)
        episodes = EpisodeColumns(
            rewards=np.bincount(batch.sequences[order], rewards_of),
            group_sizes=np.ones_like(lengths),
            num_loss_tokens=lengths,
            values=values_of,
            token_rewards=rewards_of,
        )
        advantages = np.empty(len(order), np.float32)
        advantages[order] = advantages_per_token(self._advantage, episodes)
        return torch.from_numpy(advantages).to(values.device)

    def _whiten(self, found: Sequence[RankColumns]) -> None:
        """Whiten advantages over the step's loss tokens on all ranks, if asked to, and measure V and R. Collective."""
        a = torch.cat([own[ADVANTAGES] for own in found]).double()
        v = torch.cat([own["values"] for own in found]).double()
        r = a + v
        sums = torch.stack([torch.ones_like(a), a, a * a, r, r * r, v]).sum(1)
        dist.all_reduce(sums)
        num_tokens, *of_all = sums.tolist()
        if not num_tokens:
            self._estimated = {}
            return
        mean, a_squared, r_mean, r_squared, v_mean = (total / num_tokens for total in of_all)
        variance = max(a_squared - mean**2, 0.0)
        r_variance = r_squared - r_mean**2
        self._estimated = {"critic/value_mean": v_mean}
        if r_variance > 1e-12 * r_squared:
            self._estimated["critic/explained_variance"] = 1 - variance / r_variance
        if self._advantage.is_whitened:
            deviation = (variance * num_tokens / max(num_tokens - 1, 1) + 1e-8) ** 0.5
            for own in found:
                own[ADVANTAGES] = (own[ADVANTAGES] - mean) / deviation

    def train(self, minibatches: Sequence[Minibatch[MicroBatch]]) -> dict[str, MetricValue]:
        """Make one update for each minibatch of the step that was estimated, and return its metrics. Collective.

        Raises:
            TrainerError: the loss or the gradient of none of them was finite.
        """
        start = moment(self.model.device)
        clipped = torch.zeros((), device=self.model.device)
        updates = []
        for minibatch, old in zip(minibatches, self._old, strict=True):
            loss_sum = torch.zeros((), device=self.model.device)
            for loss, is_clipped in self._losses(minibatch, old):
                loss_sum += loss
                clipped += is_clipped.sum()
            updates.append(self.model.update(self._schedule.rate(self._updates), loss_sum))
            self._updates += 1
        metrics = self._estimated | _means(updates)
        if self.settings.clip is not None:
            dist.all_reduce(clipped)
            metrics["critic/clip_fraction"] = float(clipped) / max(1, sum(m.loss_tokens for m in minibatches))
        metrics["time/critic_s"] = seconds_between(start, moment(self.model.device))
        return metrics

    def _losses(
        self, minibatch: Minibatch[MicroBatch], old: Sequence[tuple[Tensor, Tensor]]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Run forward and backward of each micro-batch; yield its loss, (), and which tokens are clipped, (N,)."""
        num_micro_batches = len(minibatch.micro_batches)
        for i, (batch, (values, returns)) in enumerate(zip(minibatch.micro_batches, old, strict=True)):
            current = self.model.values(place_batch(batch, self.model.device))
            losses, is_clipped = value_loss(current, values, returns, self.settings.clip)
            loss = losses.sum() / max(1, minibatch.loss_tokens)
            self.model.backward(loss * self.model.loss_scale.value, last=i + 1 == num_micro_batches)
            yield loss.detach(), is_clipped


def _means(updates: Sequence[Update]) -> dict[str, MetricValue]:
    """Return metrics of the updates that were made."""
    made = [update for update in updates if update.is_finite]
    if not made:
        if not any(update.is_absorbed for update in updates):
            raise TrainerError(f"critic: {updates[0]}; lower train.critic.learning_rate")
        return {}
    return {
        "critic/loss": fmean(update.loss for update in made),
        "critic/grad_norm": fmean(update.grad_norm for update in made),
    }
