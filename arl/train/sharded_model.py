"""Train a Hugging Face model that FSDP2 shards over the ranks: what PPO and supervised learning share.

    PlacedBatch ─► score()       ─► logprob, entropy ─► a loss ─┐
                ─► policy_loss() ─► loss, entropy, statistics  ─┴► backward(loss, last) ─► … ─► update()

The head is fused with what follows it, so no logits are stored. It runs inside the root's forward, where FSDP2 has its
weight gathered. Master weights, gradient reduction and optimizer states are float32; `Train.dtype` is the dtype of the
computation. Of an update's micro-batches the first gathers the weights and the last reduces the gradient.
"""

import math
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import register_fsdp_forward_method
from transformers import PreTrainedModel

from arl.config.recipe import Train
from arl.kernels.linear_logprob import linear_logprob
from arl.kernels.linear_policy_loss import RowLoss, linear_policy_loss
from arl.kernels.rows import tune_rows
from arl.models.flash import choose_flash
from arl.models.load import DTYPES
from arl.models.packed import PackedContext
from arl.train.placed_batch import LAYOUT, PlacedBatch
from arl.train.sharded_weights import ShardedWeights
from arl.train.sharding import local_part

T = TypeVar("T")


class Update:
    """Hold loss and gradient norm over all ranks, which are the same on each. Reading one waits for the device.

    Args:
        numbers: (4,) float32, the gradient's square, that of AdamW's mean of the earlier ones, their product, the loss.
    """

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = numbers
        self.is_absorbed = False  # it has overflowed, and a smaller loss scale may cure that

    @property
    def norm(self) -> Tensor:
        """Return the gradient's norm before the clip, () float64."""
        return self._numbers[0].double().sqrt()

    @property
    def is_skipped(self) -> Tensor:
        """Return whether it leaves the weights alone, () bool."""
        squared, _, _, loss = self._numbers.isfinite().unbind()
        return ~(squared & loss)

    @property
    def loss(self) -> float:
        """Return the sum over micro-batches."""
        return float(self._numbers[3])

    @property
    def grad_norm(self) -> float:
        """Return the gradient's norm before the clip."""
        return math.sqrt(self._numbers[0])

    @property
    def cosine(self) -> float | None:
        """Return the cosine between the gradient and AdamW's mean of the earlier ones; None: one of them is 0."""
        return _cosine(*self._numbers[:3].tolist())

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)

    @property
    def has_overflowed(self) -> bool:
        """Return whether only the gradient is not finite."""
        return math.isfinite(self.loss) and not math.isfinite(self.grad_norm)

    def __str__(self) -> str:
        return f"the loss is {self.loss:g} and the gradient norm {self.grad_norm:g}"


class ShardedModel(ShardedWeights):
    """Compute and update the trained model of this rank; `init_ranks` comes first.

    Args:
        path: model directory.
        train: hyper-parameters.
        temperature: of the sampling policy; logprobs are of log_softmax(logits / temperature).
        device: of this rank.
    """

    def __init__(self, path: str | Path, train: Train, temperature: float, device: torch.device) -> None:
        super().__init__(path, train, device)
        self.temperature = temperature
        self.clip_norm = train.clip_norm
        self.dtype = DTYPES[train.dtype]
        self.attention = choose_flash(device, self.dtype)
        self._world = dist.get_world_size()
        self._reshard = train.reshard
        self._copies = self._world // train.shard_ranks if train.shard_ranks else 1  # of the weights
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

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add this micro-batch's gradient; after the minibatch's last one, sum the gradient over the ranks.

        Until then weights and gradients stay whole on each rank, so that the minibatch gathers and reduces once. With
        train.reshard they are sharded each time, and only the reduction over copies of the weights waits for the last.
        """
        self._root.set_requires_gradient_sync(last or self._reshard)
        self._root.set_requires_all_reduce(last)
        self._root.set_reshard_after_backward(last or self._reshard)
        self._root.set_is_last_backward(last)
        summed = loss * self._world  # FSDP2 averages the gradient over ranks; here it is a sum
        summed.backward()  # type: ignore[no-untyped-call]

    def update(self, learning_rate: float, loss: Tensor) -> Update:
        """Clip the gradient, update the weights, clear the gradient. Collective.

        If loss or gradient is not finite on some rank, every rank only clears the gradient. The device decides that, so
        nothing waits for it, except with float16, whose next minibatch needs the new loss scale.

        Args:
            loss: () float32, this rank's sum over micro-batches, without the loss scale.
        """
        grads = self._gradient()
        means = [self._optimizer.state[local]["exp_avg"] for local in self._local.values()]
        update = Update(self._over_ranks(torch.cat([self._products(grads, means), loss[None]])))
        if self.loss_scale.is_dynamic and math.isfinite(update.loss):  # else the forward is at fault, and not the scale
            self.loss_scale.update(update.has_overflowed)
            update.is_absorbed = self.loss_scale.absorbs(update.has_overflowed)
        clip = (self.clip_norm / (update.norm + 1e-6)).where(update.norm > self.clip_norm, 1.0)
        torch._foreach_mul_(grads, clip.float())
        for local, grad in zip(self._local.values(), grads, strict=True):
            local.grad = grad
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.found_inf = update.is_skipped.float()  # type: ignore[attr-defined]  # fused AdamW then does nothing
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._clear_gradient()
        return update

    def take_gradient(self) -> list[Tensor]:
        """Return this rank's shards of the gradient, before any clip, and leave none behind for an update."""
        grads = self._gradient()
        self._clear_gradient()
        return grads

    def cosine(self, a: list[Tensor], b: list[Tensor]) -> float | None:
        """Return the cosine between two gradients of which this rank has shards; None if one is 0. Collective."""
        return _cosine(*self._over_ranks(self._products(a, b)).tolist())

    def _over_ranks(self, numbers: Tensor) -> Tensor:
        """Sum numbers of each rank. Collective."""
        if self._world > 1:
            dist.all_reduce(numbers)
        return numbers

    def _gradient(self) -> list[Tensor]:
        grads = [local_part(p.grad) for p in self._shards.values() if p.grad is not None]
        assert len(grads) == len(self._local), "a parameter without gradient"
        if self.loss_scale.is_dynamic:
            torch._foreach_mul_(grads, 1 / self.loss_scale.value)
        return grads

    def _clear_gradient(self) -> None:
        for parameter in self._shards.values():
            parameter.grad = None

    def _products(self, a: list[Tensor], b: list[Tensor]) -> Tensor:
        """Compute a·a, b·b and a·b over this rank's shards, (3,), which sum up to those of all ranks."""
        squares = [torch.stack(torch._foreach_norm(x)).square().sum() for x in (a, b)]
        if self.device.type == "cuda":  # a few launches, where a dot for each parameter takes hundreds
            products = torch._foreach_mul(a, b)
            magnitudes = torch.stack(torch._foreach_norm(products, 1))
            torch._foreach_clamp_max_(products, 0.0)
            dots = magnitudes - 2 * torch.stack(torch._foreach_norm(products, 1))
        else:
            dots = torch.stack([x.reshape(-1).dot(y.reshape(-1)) for x, y in zip(a, b, strict=True)])
        return torch.stack([*squares, dots.sum()]) / self._copies  # each copy of the weights has the whole gradient


def _cosine(squared_a: float, squared_b: float, dot: float) -> float | None:
    lengths = math.sqrt(squared_a) * math.sqrt(squared_b)
    if not lengths or not math.isfinite(lengths):
        return None
    return max(-1.0, min(1.0, dot / lengths))  # rounding may lead out of [−1, 1]


def _scored(
    model: PreTrainedModel, inputs: dict[str, Any], positions: Tensor, head: Callable[[Tensor, Tensor], T]
) -> T:
    """Run the model up to `head`, which takes the place of the logits: a second forward method of the root."""
    out = model.model(**inputs, use_cache=False)
    hidden = out.last_hidden_state[0]  # (T, D)
    scored = hidden.index_select(0, positions)  # (M, D)
    return head(scored, model.lm_head.weight)
