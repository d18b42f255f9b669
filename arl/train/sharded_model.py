"""Train a Hugging Face model that FSDP2 shards over the ranks: what PPO and supervised learning share.

    ScoredModel: a loss ─► backward(loss, last) ─► … ─► update()
    training_state: this rank's share, in host memory ─► write: files of this rank ─► a checkpoint ─► load_optimizer

Master weights, gradient reduction and optimizer states are float32; `Train.dtype` is the dtype of the computation. Of
an update's micro-batches the first gathers the weights and the last reduces the gradient.

The optimizer works on the local shards themselves: AdamW is elementwise, so the result is the same, and DTensor's
dispatch, which costs more than the arithmetic of a tiny model, is not paid.
"""

import math
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

from arl.config.recipe import Train
from arl.files import writing
from arl.models.model_files import OPTIMIZER, write_description
from arl.models.weights import LORA, plain_name
from arl.train.optimizer import LossScale
from arl.train.scored_model import ScoredModel
from arl.train.sharding import local_part
from arl.train.training_copy import TrainingCopy, TrainingState, read_rows

LOSS_SCALE = "loss_scale"  # (2,) float32 in the optimizer's files: the value, and the good updates since it changed
MOMENTS = ("exp_avg", "exp_avg_sq")


def matrices(model: torch.nn.Module) -> set[str]:
    """Return the names of the weights of linear layers, without biases and without what an embedding shares."""
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    linear = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return {f"{name}.weight" for name, module in linear.items() if id(module.weight) not in embedded}


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


class ShardedModel(ScoredModel):
    """Compute and update the trained model of this rank; `init_ranks` comes first.

    Args:
        path: model directory.
        train: hyper-parameters.
        temperature: of the sampling policy; logprobs are of log_softmax(logits / temperature).
        device: of this rank.
        seed: of LoRA adapters.
    """

    def __init__(self, path: str | Path, train: Train, temperature: float, device: torch.device, seed: int = 0) -> None:
        super().__init__(path, train, temperature, device, seed=seed)
        self._trained = {name: local for name, local in self._local.items() if self._shards[name].requires_grad}
        self.clip_norm = train.clip_norm
        self._world = dist.get_world_size()
        self._reshard = train.reshard
        self._copies = self._world // train.shard_ranks if train.shard_ranks else 1  # of the weights
        self._optimizer = self._make_optimizer(train)
        self.loss_scale = LossScale.of(train.dtype)
        # Other weights of the model, by name, then this rank's shards by name: checkpoints hold them. Nobody changes a
        # tensor that was put here; an update puts another in its place.
        self.beside: dict[str, dict[str, Tensor]] = {}
        self._copy = TrainingCopy(self.tensors(torch.float32), self._group)

    def _make_optimizer(self, train: Train) -> torch.optim.Optimizer:
        """Make AdamW with moments of zero: a checkpoint may come before the first update that is not skipped."""
        decaying = self._shards.keys() if train.decayed == "all" else matrices(self.model)
        decayed = [local for name, local in self._trained.items() if name in decaying]
        others = [local for name, local in self._trained.items() if name not in decaying]
        groups = [{"params": decayed, "weight_decay": train.weight_decay}, {"params": others, "weight_decay": 0.0}]
        used = [group for group in groups if group["params"]]
        optimizer = torch.optim.AdamW(used, betas=train.betas, eps=train.eps, fused=True)
        for local in self._trained.values():
            state = {moment: torch.zeros_like(local, requires_grad=False) for moment in MOMENTS}
            optimizer.state[local] = {"step": torch.zeros((), device=self.device), **state}
        return optimizer

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

    def update(self, learning_rate: float | Tensor, loss: Tensor, scale: Tensor | None = None) -> Update:
        """Clip the gradient, update the weights, clear the gradient. Collective.

        If loss or gradient is not finite on some rank, every rank only clears the gradient. The device decides that, so
        nothing waits for it, except with float16, whose next minibatch needs the new loss scale.

        Args:
            learning_rate: the same on each rank; () float32 on the device where it follows from the minibatch.
            loss: () float32, this rank's sum over micro-batches, without the loss scale.
            scale: () float32, the same on each rank; multiplies loss and gradient.
        """
        grads = self._gradient()
        if scale is not None:
            torch._foreach_mul_(grads, scale)
            loss = loss * scale
        means = [self._optimizer.state[local]["exp_avg"] for local in self._trained.values()]
        update = Update(self._over_ranks(torch.cat([self._products(grads, means), loss[None]])))
        if self.loss_scale.is_dynamic and math.isfinite(update.loss):  # else the forward is at fault, and not the scale
            self.loss_scale.update(update.has_overflowed)
            update.is_absorbed = self.loss_scale.absorbs(update.has_overflowed)
        clip = (self.clip_norm / (update.norm + 1e-6)).where(update.norm > self.clip_norm, 1.0)
        torch._foreach_mul_(grads, clip.float())
        for local, grad in zip(self._trained.values(), grads, strict=True):
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

    def training_state(self) -> TrainingState:
        """Copy this rank's share of weights and optimizer. Collective.

        Later steps do not change the copy, and the next call does: it uses the same memory.
        """
        copied = self._copy.take(self._local_weights(), self._optimizer_state())
        self._wait_for_copies()
        beside = {f"{kind}.{name}": one for kind, shards in self.beside.items() for name, one in shards.items()}
        return copied._replace(optimizer=copied.optimizer | beside)

    def load_beside(self, path: Path) -> None:
        """Read what a checkpoint holds of the names in `beside`."""
        files = sorted(path.glob(f"{OPTIMIZER}*.safetensors"))  # in the order of the ranks
        like = {plain_name(name): shard for name, shard in self._shards.items() if LORA not in name}
        for kind, shards in self.beside.items():
            for name, place in shards.items():
                read_rows(files, f"{kind}.{name}", like[name], place)

    def _optimizer_state(self) -> dict[str, Tensor]:
        """Return this rank's rows of AdamW's state and adapters by their names in a file, and the loss scale."""
        found = {LOSS_SCALE: torch.tensor([self.loss_scale.value, self.loss_scale.num_good])}
        for name, local in self._trained.items():
            state = self._optimizer.state[local]
            found["step"] = state["step"]  # every parameter has the same
            for moment in MOMENTS:
                found[f"{moment}.{name}"] = state[moment]
            if LORA in name:
                found[name] = local.detach()  # what is written as a model has adapters merged
        return found

    def write(self, state: TrainingState, path: Path) -> None:
        """Write this rank's `state` to `path`, as `from_pretrained` and `load_optimizer` read it. Not collective.

        Raises:
            DiskError: it cannot be written.
        """
        if not self._group.has_rank_0:
            return
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            if self._group.part == 0:
                write_description(self.description, path, "float32")
            self._copy.write(state, path)

    def load_optimizer(self, path: Path) -> None:
        """Continue with AdamW's state and adapters of a checkpoint, which any number of ranks may have written."""
        files = sorted(path.glob(f"{OPTIMIZER}*.safetensors"))  # in the order of the ranks
        with safe_open(files[0], framework="pt") as first_file:
            step = first_file.get_tensor("step")
            loss_scale, num_good = first_file.get_tensor(LOSS_SCALE).tolist()
        for name, local in self._trained.items():
            state = self._optimizer.state[local]
            state["step"].copy_(step)
            for moment in MOMENTS:
                read_rows(files, f"{moment}.{name}", self._shards[name], state[moment])
            if LORA in name:
                read_rows(files, name, self._shards[name], local.detach())
        if self.loss_scale.is_dynamic:
            self.loss_scale.value = loss_scale
            self.loss_scale.num_good = int(num_good)

    def _over_ranks(self, numbers: Tensor) -> Tensor:
        """Sum numbers of each rank. Collective."""
        if self._world > 1:
            dist.all_reduce(numbers)
        return numbers

    def _gradient(self) -> list[Tensor]:
        grads = [local_part(p.grad) for p in self._shards.values() if p.grad is not None]
        assert len(grads) == len(self._trained), "a parameter without gradient"
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
