"""A Hugging Face model sharded by FSDP2, with AdamW on this rank's shards: what PPO and supervised learning share.

    MicroBatch ─► score() ─► logprob, entropy ─► a loss ─► backward(loss, last) ─► … ─► update() ─► grad_norm

Master weights, gradient reduction and optimizer states are float32; `Train.dtype` is the type of the computation.
The optimizer and the gradient norm work on the local shards themselves: AdamW is elementwise, so the result is the
same, and DTensor's dispatch, which costs more than a tiny model's arithmetic, is not paid.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoTokenizer, PreTrainedModel

from arl.errors import DataError, TrainerError
from arl.kernels.logprob import token_logprob
from arl.models.load import DTYPES, load_model, save_model
from arl.models.packed import PackedContext
from arl.recipe import Train
from arl.train.packer import MicroBatch

OPTIMIZER = "optimizer.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq")
WORTH_A_COLLECTIVE = 1 << 20  # parameters; smaller decoder blocks are gathered together with the root


def init_ranks(deadline_seconds: float) -> torch.device:
    """Join torchrun's process group, or make one of this process alone; returns the device to compute on."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        backend, timeout = "nccl" if cuda else "gloo", timedelta(seconds=deadline_seconds)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            dist.init_process_group(backend, timeout=timeout)
        else:  # nobody to meet: no port is opened
            dist.init_process_group(backend, timeout=timeout, store=HashStore(), rank=0, world_size=1)
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")


@dataclass(frozen=True)
class TrainingState:
    """A copy of what a trainer needs to go on, on the CPU of rank 0; empty on the others."""

    weights: dict[str, Tensor]  # float32, by parameter name
    optimizer: dict[str, Tensor]  # AdamW's two moments as <moment>.<parameter>, and the number of updates as step


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
        self.model: PreTrainedModel = load_model(path, "float32", device)
        self._root = _shard(self.model, self.dtype, device)
        self._shards = list(self.model.parameters())
        self._local = [torch.nn.Parameter(_local(p.detach())) for p in self._shards]
        self._optimizer = torch.optim.AdamW(
            self._local, betas=train.betas, eps=train.eps, weight_decay=train.weight_decay, fused=True
        )

    def score(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """One forward of the pack: logprob and entropy of its M scored positions, each (M,) float32."""
        context = PackedContext(batch.query_offsets, batch.key_offsets, batch.key_indices)
        logits = self.model(
            input_ids=self.tensor(batch.token_ids)[None],
            position_ids=self.tensor(batch.position_ids)[None],
            use_cache=False,
            context=context,
            logits_to_keep=self.tensor(batch.score_positions),
        ).logits[0]  # (M, V)
        assert context.calls == self.model.config.num_hidden_layers, "a layer did not ask the pack's context"
        return token_logprob(logits, self.tensor(batch.score_targets), self.temperature)

    def tensor(self, array: np.ndarray) -> Tensor:
        """A rank's copy of an array, integers as int64."""
        tensor = torch.from_numpy(array)
        return tensor.to(self.device, torch.int64 if array.dtype.kind == "i" else torch.float32)

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add this micro-batch's gradient; the minibatch's last one also sums it over the ranks."""
        self._root.set_requires_gradient_sync(last)
        self._root.set_is_last_backward(last)
        (loss * self._world if self._world > 1 else loss).backward()  # type: ignore[no-untyped-call]  # FSDP2 averages over ranks; this is a sum

    def update(self, learning_rate: float) -> float:
        """Clip, step, clear. Returns the norm of the gradient over all ranks before the clip.

        Raises:
            TrainerError: that norm is not finite; the weights are untouched.
        """
        grads = [_local(p.grad) for p in self._shards if p.grad is not None]
        assert len(grads) == len(self._local), "a parameter without gradient"
        norm = self._norm(grads)
        if not norm < float("inf"):
            raise TrainerError(f"the gradient norm is {norm}")
        if norm > self.clip_norm:
            torch._foreach_mul_(grads, self.clip_norm / (norm + 1e-6))
        for local, grad in zip(self._local, grads, strict=True):
            local.grad = grad
        self._optimizer.param_groups[0]["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        for shard in self._shards:
            shard.grad = None
        return norm

    def full_state(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """A copy of every weight in `dtype`, on the CPU of rank 0; empty on the others. Collective."""
        state = {}
        for (name, shard), local in zip(self.model.named_parameters(), self._local, strict=True):
            full = _full(local.detach(), shard)
            if dist.get_rank() == 0:
                state[name] = full.to("cpu", dtype, copy=True)
        return state

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
        """Weights and optimizer, after at least one update. Collective; nothing of it changes with later steps."""
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
                for (name, shard), local in zip(self.model.named_parameters(), self._local, strict=True):
                    moments = {m: _shard_like(file.get_tensor(f"{m}.{name}"), shard) for m in MOMENTS}
                    step = file.get_tensor("step").to(self.device, copy=True)  # all that a file gives share its memory
                    self._optimizer.state[local] = {"step": step, **moments}
        except (OSError, SafetensorError) as error:
            raise DataError(f"{path / OPTIMIZER}: not the optimizer state of this model ({error})") from error

    def _moments(self) -> Iterator[tuple[str, Tensor]]:
        for (name, shard), local in zip(self.model.named_parameters(), self._local, strict=True):
            for moment in MOMENTS:
                yield f"{moment}.{name}", _full(self._optimizer.state[local][moment], shard)

    def _norm(self, grads: list[Tensor]) -> float:
        squares = torch.stack(torch._foreach_norm(grads)).square().sum()
        if self._world > 1:
            dist.all_reduce(squares)
        return float(squares.sqrt())


def _shard(model: PreTrainedModel, dtype: torch.dtype, device: torch.device) -> FSDPModule:
    world = dist.get_world_size()
    mesh = init_device_mesh(device.type, (world,))
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, output_dtype=dtype)
    for block in model.model.layers:
        if sum(p.numel() for p in block.parameters()) >= WORTH_A_COLLECTIVE:
            fully_shard(block, mesh=mesh, mp_policy=precision, reshard_after_forward=world > 1)
    fully_shard(model, mesh=mesh, mp_policy=precision, reshard_after_forward=False)
    assert isinstance(model, FSDPModule)
    return model


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
