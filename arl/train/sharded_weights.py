"""Hold this rank's shards of a model and of AdamW's moments, and save and load them as checkpoints.

    model directory ─► empty model ─► shard ─► fill_model
    gather ─► what is published               training_state ─► write ─► a checkpoint ─► load_optimizer

Master weights and optimizer states are float32. The optimizer works on the local shards themselves: AdamW is
elementwise, so the result is the same, and DTensor's dispatch, which costs more than the arithmetic of a tiny model,
is not paid.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel

from arl.config.recipe import Train
from arl.errors import DataError
from arl.models.load import empty_model, save_model
from arl.models.weights import fill_model
from arl.train.gathering import Bucket, gather_buckets, shard_group
from arl.train.loss_scale import LossScale
from arl.train.sharding import local_part, part_like, shard, whole_tensor

OPTIMIZER = "optimizer.safetensors"
LOSS_SCALE = "loss_scale"  # (2,) float32 in the optimizer's file: the value, and the good updates since it changed
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class TrainingState:
    """Holds a copy of what a trainer needs to resume, on the CPU of rank 0; empty on the other ranks."""

    weights: dict[str, Tensor]  # float32, by parameter name
    optimizer: dict[str, Tensor]  # AdamW's moments as <moment>.<parameter>, its number of updates, and the loss scale


def matrices(model: torch.nn.Module) -> set[str]:
    """Return the names of the weights of linear layers, without biases and without what an embedding shares."""
    embedded = [module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    found = set()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and not any(module.weight is weight for weight in embedded):
            found.add(f"{name}.weight")
    return found


class ShardedWeights:
    """Holds the sharded parameters of this rank and their optimizer; `init_ranks` comes first.

    Args:
        path: model directory.
        train: how to shard, and AdamW's hyper-parameters.
        device: of this rank.
    """

    def __init__(self, path: str | Path, train: Train, device: torch.device) -> None:
        self.device = device
        self.model: PreTrainedModel = empty_model(path)
        self._root = shard(self.model, train, device)
        fill_model(self.model, path, device)
        self._shards = dict(self.model.named_parameters())
        self._local = [torch.nn.Parameter(local_part(p.detach())) for p in self._shards.values()]
        self._optimizer = torch.optim.AdamW(
            self._groups(train),
            betas=train.betas,
            eps=train.eps,
            fused=True,
        )
        self.loss_scale = LossScale.of(train.dtype)
        for local in self._local:  # a checkpoint may come before the first update that is not skipped
            state = {"step": torch.zeros((), device=device)}
            for moment in MOMENTS:
                state[moment] = torch.zeros_like(local, requires_grad=False)
            self._optimizer.state[local] = state

    def _groups(self, train: Train) -> list[dict[str, Any]]:
        """Divide the local shards into those that decay and those that do not."""
        names = self._shards.keys()
        decaying = matrices(self.model) if train.decayed == "matrices" else set(names)
        decayed = [local for name, local in zip(names, self._local, strict=True) if name in decaying]
        others = [local for name, local in zip(names, self._local, strict=True) if name not in decaying]
        groups = [
            {"params": decayed, "weight_decay": train.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"]]

    def gather(self, buckets: Sequence[Bucket], flats: Sequence[Tensor] | None, everywhere: bool = False) -> None:
        """Write every weight, cast to the dtype of `buckets`, into `flats`; it is there on return. Collective.

        Args:
            buckets: all parameters in their order, as arl.sync.buckets cuts them.
            flats: memory of each bucket, (bytes of the bucket,) uint8. None: this rank keeps nothing.
            everywhere: every rank may keep the buckets; otherwise rank 0 alone.
        """
        shards = {name: local.detach() for name, _, local in self._parameters()}
        any_parameter = next(iter(self._shards.values()))
        group = shard_group(any_parameter)
        gather_buckets(shards, buckets, flats, group, everywhere)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def full_state(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Copy every weight, in `dtype`, to the CPU of rank 0; returns nothing on the other ranks. Collective."""
        state = {}
        for name, sharded, local in self._parameters():
            full = whole_tensor(local.detach(), sharded)
            if dist.get_rank() == 0:
                state[name] = full.to("cpu", dtype, copy=True)
        return state

    def save(self, path: Path, tokenizer_path: str | Path) -> None:
        """Write float32 master weights, config and tokenizer to `path`, all or nothing. Collective.

        Raises:
            OSError: `path` exists and is not empty.
        """
        weights = self.full_state(torch.float32)
        state = TrainingState(weights, optimizer={})
        if dist.get_rank() == 0:
            temporary = path.with_name(f".{path.name}.partial")
            self.write(state, temporary, tokenizer_path)
            temporary.rename(path)

    def training_state(self) -> TrainingState:
        """Copy weights and optimizer; later steps do not change the copy. Collective."""
        optimizer = {}
        for name, full in self._moments():
            if dist.get_rank() == 0:
                optimizer[name] = full.to("cpu", copy=True)
        if dist.get_rank() == 0:
            any_state = self._optimizer.state[self._local[0]]
            optimizer["step"] = any_state["step"].to("cpu", copy=True)
            optimizer[LOSS_SCALE] = torch.tensor([self.loss_scale.value, self.loss_scale.num_good])
        weights = self.full_state(torch.float32)
        return TrainingState(weights, optimizer)

    def write(self, state: TrainingState, path: Path, tokenizer_path: str | Path) -> None:
        """Write rank 0's `state` to `path`, as `from_pretrained` and `load_optimizer` read it. Not collective."""
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
        save_model(self.model, tokenizer, state.weights, path)
        if state.optimizer:
            save_file(state.optimizer, path / OPTIMIZER)

    def load_optimizer(self, path: Path) -> None:
        """Continue with the AdamW state of a checkpoint, which any number of ranks may have written. Collective.

        Raises:
            DataError: the checkpoint has no optimizer state, or that of another model.
        """
        try:
            with safe_open(path / OPTIMIZER, "pt") as file:
                value, num_good = file.get_tensor(LOSS_SCALE).tolist()
                for name, sharded, local in self._parameters():
                    # A copy, because all tensors that a file gives share its memory.
                    state = {"step": file.get_tensor("step").to(self.device, copy=True)}
                    for moment in MOMENTS:
                        whole = file.get_tensor(f"{moment}.{name}")
                        state[moment] = part_like(whole, sharded)
                    self._optimizer.state[local] = state
        except (OSError, SafetensorError) as error:
            raise DataError(
                f"{path / OPTIMIZER}: not the optimizer state of this model ({error}); resume from another checkpoint"
            ) from error
        if self.loss_scale.is_dynamic:
            self.loss_scale.value = value
            self.loss_scale.num_good = int(num_good)

    def _moments(self) -> Iterator[tuple[str, Tensor]]:
        """Yield each moment, whole. Collective."""
        for name, sharded, local in self._parameters():
            state = self._optimizer.state[local]
            for moment in MOMENTS:
                yield f"{moment}.{name}", whole_tensor(state[moment], sharded)

    def _parameters(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield of each parameter its name, the parameter of the model, and the shard that the optimizer updates."""
        for (name, sharded), local in zip(self._shards.items(), self._local, strict=True):
            yield name, sharded, local
