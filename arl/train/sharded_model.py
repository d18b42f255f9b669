"""A Hugging Face model sharded by FSDP2, with AdamW on this rank's shards: what PPO and supervised learning share.

    MicroBatch ─► score()        ─► logprob, entropy ─► a loss ─┐
               ─► policy_loss()  ─► loss, entropy, statistics  ─┴► backward(loss, last) ─► … ─► update()

The head is fused with what follows it: no logits are stored. It runs inside the root's forward, where FSDP2 has its
weight gathered. Master weights, gradient reduction and optimizer states are float32; `Train.dtype` is the type of the
computation. Of an update's micro-batches the first gathers the weights and the last reduces the gradient.

The optimizer and the gradient norm work on the local shards themselves: AdamW is elementwise, so the result is the
same, and DTensor's dispatch, which costs more than a tiny model's arithmetic, is not paid.
"""

import math
import os
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch._C._distributed_c10d import HashStore, Store, TCPStore
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoTokenizer, PreTrainedModel

from arl.config.recipe import Train
from arl.errors import DataError
from arl.kernels.linear_logprob import linear_logprob
from arl.kernels.linear_policy_loss import linear_policy_loss
from arl.kernels.policy_loss import RowLoss
from arl.models.load import DTYPES, empty_model, save_model
from arl.models.packed import PackedContext
from arl.models.weights import fill_model
from arl.sync.process_group import listen
from arl.train.packer import MicroBatch
from arl.train.sharding import copies, shard

T = TypeVar("T")
OPTIMIZER = "optimizer.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq")


def init_ranks(deadline_seconds: float) -> torch.device:
    """Join torchrun's process group, or make one of this process alone; returns the device to compute on."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        store = _meet(rank, deadline_seconds) if world > 1 else HashStore()  # a single rank meets nobody
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            timeout=timedelta(seconds=deadline_seconds),
            store=store,
            rank=rank if world > 1 else 0,
            world_size=world,
        )
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")


def _meet(rank: int, seconds: float) -> Store:
    """By torchrun's variables; its agent may listen, else rank 0 does, at MASTER_ADDR alone."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return listen(host, seconds, port)[0]
    return TCPStore(host, port, timeout=timedelta(seconds=seconds))


@dataclass(frozen=True)
class TrainingState:
    """A copy of what a trainer needs to go on, on the CPU of rank 0; empty on the others."""

    weights: dict[str, Tensor]  # float32, by parameter name
    optimizer: dict[str, Tensor]  # AdamW's two moments as <moment>.<parameter>, and the number of updates as step


class Update(NamedTuple):
    """What was reduced over all ranks, and is the same on each."""

    loss: float  # sum over micro-batches
    grad_norm: float  # before the clip

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)

    def __str__(self) -> str:
        return f"the loss is {self.loss:g} and the gradient norm {self.grad_norm:g}"


class ShardedModel:
    """The trained model of this rank; `init_ranks` comes first.

    Args:
        path: model directory.
        train: hyper-parameters.
        temperature: of the sampling policy; logprobs are of log_softmax(logits / temperature).
    """

    def __init__(self, path: str | Path, train: Train, temperature: float, device: torch.device) -> None:
        self.device, self.temperature = device, temperature
        self._world = dist.get_world_size()
        self.clip_norm = train.clip_norm
        self.dtype = DTYPES[train.dtype]
        self._reshard, self._copies = train.reshard, copies(train)
        self.model: PreTrainedModel = empty_model(path)
        self._root = shard(self.model, train, device)
        fill_model(self.model, path, device)
        self.model.scored = types.MethodType(_scored, self.model)
        register_fsdp_forward_method(self.model, "scored")
        self._shards = dict(self.model.named_parameters())
        self._local = [torch.nn.Parameter(_local(p.detach())) for p in self._shards.values()]
        self._optimizer = torch.optim.AdamW(
            self._local, betas=train.betas, eps=train.eps, weight_decay=train.weight_decay, fused=True
        )
        for local in self._local:  # a checkpoint may come before the first update that is not skipped
            moments = {moment: torch.zeros_like(local, requires_grad=False) for moment in MOMENTS}
            self._optimizer.state[local] = {"step": torch.zeros((), device=device), **moments}

    def score(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """One forward of the pack: logprob and entropy of its M scored positions, each (M,) float32.

        The logprobs carry a gradient, for losses that look at whole sequences; those that are sums over tokens are
        cheaper by policy_loss.
        """
        targets = self.tensor(batch.score_targets)
        return self._forward(batch, lambda hidden, head: linear_logprob(hidden, head, targets, self.temperature))

    def policy_loss(self, batch: MicroBatch, row_loss: RowLoss) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """A loss that is a sum over scored positions, whose gradient the head takes in its forward.

        Returns:
            The loss (), with gradient; entropy (M,) float32; what `row_loss` kept, joined in row order.
        """
        targets = self.tensor(batch.score_targets)
        total, _, entropy, stats = self._forward(
            batch, lambda hidden, head: linear_policy_loss(hidden, head, targets, row_loss, self.temperature)
        )
        return total, entropy, stats

    def _forward(self, batch: MicroBatch, head: Callable[[Tensor, Tensor], T]) -> T:
        """What `head` makes of the hidden states (M, D) of the scored positions and the head's weight (V, D)."""
        context = PackedContext(batch.query_offsets, batch.key_offsets, batch.key_indices)
        inputs = {
            "input_ids": self.tensor(batch.token_ids)[None],
            "position_ids": self.tensor(batch.position_ids)[None],
            "context": context,
        }
        out: T = self.model.scored(inputs, self.tensor(batch.score_positions), head)
        assert context.calls == self.model.config.num_hidden_layers, "a layer did not ask the pack's context"
        return out

    def tensor(self, array: np.ndarray) -> Tensor:
        """A rank's copy of an array, integers as int64."""
        tensor = torch.from_numpy(array)
        dtype = torch.int64 if array.dtype.kind == "i" else torch.float32
        return tensor.to(self.device, dtype, non_blocking=True)  # CUDA has read what is not pinned when this returns

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add this micro-batch's gradient; after the minibatch's last one, it is also summed over the ranks.

        Until then weights and gradients stay whole on each rank, so that the minibatch gathers and reduces once; with
        train.reshard they are cut each time, and only copies of the weights wait for the last one.
        """
        self._root.set_requires_gradient_sync(last or self._reshard)
        self._root.set_requires_all_reduce(last)
        self._root.set_reshard_after_backward(last or self._reshard)
        self._root.set_is_last_backward(last)
        (loss * self._world if self._world > 1 else loss).backward()  # type: ignore[no-untyped-call]  # FSDP2 averages over ranks; this is a sum

    def update(self, learning_rate: float, loss: Tensor) -> Update:
        """Clip, step, clear; where loss or gradient is not finite on some rank, only clear, on every rank. Collective.

        Args:
            loss: () float32, this rank's sum over micro-batches.
        """
        grads = [_local(p.grad) for p in self._shards.values() if p.grad is not None]
        assert len(grads) == len(self._local), "a parameter without gradient"
        update = self._reduced(grads, loss)
        if update.is_finite:
            if update.grad_norm > self.clip_norm:
                torch._foreach_mul_(grads, self.clip_norm / (update.grad_norm + 1e-6))
            for local, grad in zip(self._local, grads, strict=True):
                local.grad = grad
            self._optimizer.param_groups[0]["lr"] = learning_rate
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        for parameter in self._shards.values():
            parameter.grad = None
        return update

    def full_state(self, dtype: torch.dtype, pinned: bool = False) -> dict[str, Tensor]:
        """A copy of every weight in `dtype`, on the CPU of rank 0; empty on the others. Collective.

        Args:
            pinned: from a GPU, in pages that it writes to by itself, many times as fast; torch keeps them for the next.
        """
        state = {}
        for (name, cut), local in zip(self._shards.items(), self._local, strict=True):
            full = _full(local.detach(), cut)
            if dist.get_rank() == 0:
                state[name] = torch.empty(full.shape, dtype=dtype, pin_memory=pinned and full.is_cuda)
                state[name].copy_(full, non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        return state

    def give_back(self) -> None:
        """Leave others a GPU's memory between two steps: all but weights and moments. Without a GPU, nothing."""
        torch.cuda.empty_cache()

    def save(self, path: Path, tokenizer_path: str | Path) -> None:
        """Write float32 master weights, config and tokenizer to `path`, all or nothing. Collective.

        Raises:
            OSError: `path` exists and is not empty.
        """
        state = TrainingState(self.full_state(torch.float32), {})
        if dist.get_rank() == 0:
            temporary = path.with_name(f".{path.name}.partial")
            self.write(state, temporary, tokenizer_path)
            temporary.rename(path)

    def training_state(self) -> TrainingState:
        """Weights and optimizer. Collective; nothing of it changes with later steps."""
        optimizer = {}
        for name, full in self._moments():
            if dist.get_rank() == 0:
                optimizer[name] = full.to("cpu", copy=True)
        if dist.get_rank() == 0:
            optimizer["step"] = self._optimizer.state[self._local[0]]["step"].to("cpu", copy=True)
        return TrainingState(self.full_state(torch.float32), optimizer)

    def write(self, state: TrainingState, path: Path, tokenizer_path: str | Path) -> None:
        """Write rank 0's `state` to `path`, as `from_pretrained` and `load_optimizer` read it. Not collective."""
        save_model(self.model, AutoTokenizer.from_pretrained(tokenizer_path), state.weights, path)
        if state.optimizer:
            save_file(state.optimizer, path / OPTIMIZER)

    def load_optimizer(self, path: Path) -> None:
        """Go on with the AdamW of a checkpoint, whatever world wrote it. Collective.

        Raises:
            DataError: the checkpoint has no optimizer state, or that of another model.
        """
        try:
            with safe_open(path / OPTIMIZER, "pt") as file:
                for (name, cut), local in zip(self._shards.items(), self._local, strict=True):
                    moments = {m: _shard_like(file.get_tensor(f"{m}.{name}"), cut) for m in MOMENTS}
                    step = file.get_tensor("step").to(self.device, copy=True)  # all that a file gives share its memory
                    self._optimizer.state[local] = {"step": step, **moments}
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path / OPTIMIZER}: not the optimizer state of this model ({error})") from error

    def _moments(self) -> Iterator[tuple[str, Tensor]]:
        for (name, cut), local in zip(self._shards.items(), self._local, strict=True):
            for moment in MOMENTS:
                yield f"{moment}.{name}", _full(self._optimizer.state[local][moment], cut)

    def _reduced(self, grads: list[Tensor], loss: Tensor) -> Update:
        squares = torch.stack(torch._foreach_norm(grads)).square().sum()
        both = torch.stack([squares / self._copies, loss])  # each copy of the weights has the whole gradient
        if self._world > 1:
            dist.all_reduce(both)
        squared, total = both.tolist()
        return Update(total, math.sqrt(squared))


def _scored(
    model: PreTrainedModel, inputs: dict[str, Any], positions: Tensor, head: Callable[[Tensor, Tensor], T]
) -> T:
    """A second forward of the root, which ends in `head` instead of logits."""
    hidden = model.model(**inputs, use_cache=False).last_hidden_state[0]  # (T, D)
    return head(hidden.index_select(0, positions), model.lm_head.weight)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _full(local: Tensor, shard: Tensor) -> Tensor:
    """The whole of which every rank has a part, cut as the parameter `shard` is. Collective."""
    if dist.get_world_size() == 1 or not isinstance(shard, DTensor):
        return local
    whole = DTensor.from_local(local, shard.device_mesh, shard.placements, shape=shard.shape, stride=shard.stride())
    return whole.full_tensor()


def _shard_like(full: Tensor, shard: Tensor) -> Tensor:
    """This rank's part of `full`, cut as the parameter `shard` is."""
    full = full.to(shard.device, copy=True)
    if not isinstance(shard, DTensor):
        return full
    return distribute_tensor(full, shard.device_mesh, shard.placements, src_data_rank=None).to_local().contiguous()
