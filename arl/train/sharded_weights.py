"""Hold this rank's shards of a model and of AdamW's moments, and save and load them as checkpoints.

    model directory ─► empty model ─► shard ─► fill_model
    gather ─► what is published
    training_state: this rank's share, in host memory ─► write: files of this rank ─► a checkpoint ─► load_optimizer

Master weights and optimizer states are float32. The optimizer works on the local shards themselves: AdamW is
elementwise, so the result is the same, and DTensor's dispatch, which costs more than the arithmetic of a tiny model,
is not paid.

Ranks share the work of a checkpoint. Each writes whole weights, those of its share, because `from_pretrained` reads
them; and its rows of AdamW's state as they are, because no rank needs them but through this module.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from arl.config.recipe import Train
from arl.files import remove_any, writing
from arl.models.load import check_weights, empty_model
from arl.models.model_files import file_of_part, read_description, write_description, write_index
from arl.models.weights import fill_model, own_rows, rows_of, rows_of_part
from arl.sync.buckets import TensorSpec, bucket_bytes_of, make_buckets
from arl.sync.loading import specs_of, unflatten, unflatten_all
from arl.sync.version_buffers import allocate_buckets
from arl.train.gathering import Bucket, ShardGroup, collect_share, deal, gather_buckets, shard_group
from arl.train.optimizer import LossScale
from arl.train.sharding import local_part, shard

LOSS_SCALE = "loss_scale"  # (2,) float32 in the optimizer's files: the value, and the good updates since it changed
MOMENTS = ("exp_avg", "exp_avg_sq")
BUCKET_BYTES = 256 * 10**6  # of a round; two such are on the device meanwhile, or the largest tensor
OPTIMIZER = "optimizer"  # stem of the files' names


def matrices(model: torch.nn.Module) -> set[str]:
    """Return the names of the weights of linear layers, without biases and without what an embedding shares."""
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    linear = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    return {f"{name}.weight" for name, module in linear.items() if id(module.weight) not in embedded}


class ShardedWeights:
    """Hold the sharded parameters of this rank and their optimizer; `init_ranks` comes first.

    Args:
        path: model directory.
        train: how to shard, and AdamW's hyper-parameters.
        device: of this rank.
    """

    def __init__(self, path: str | Path, train: Train, device: torch.device) -> None:
        self.device = device
        self.model: PreTrainedModel = empty_model(path)
        check_weights(self.model, path)
        self.description = read_description(path)  # now: the directory may change, or be gone, while a run goes on
        self._root = shard(self.model, train, device)
        fill_model(self.model, path, device)
        self._shards = dict(self.model.named_parameters())
        self._local = {name: torch.nn.Parameter(local_part(p.detach())) for name, p in self._shards.items()}
        self._optimizer = self._make_optimizer(train)
        self.loss_scale = LossScale.of(train.dtype)
        self._group = shard_group(next(iter(self._shards.values())))
        self._copy = TrainingCopy(self.tensors(torch.float32), self._group)

    def _make_optimizer(self, train: Train) -> torch.optim.Optimizer:
        """Make AdamW with moments of zero: a checkpoint may come before the first update that is not skipped."""
        decaying = self._shards.keys() if train.decayed == "all" else matrices(self.model)
        decayed = [local for name, local in self._local.items() if name in decaying]
        others = [local for name, local in self._local.items() if name not in decaying]
        groups = [{"params": decayed, "weight_decay": train.weight_decay}, {"params": others, "weight_decay": 0.0}]
        used = [group for group in groups if group["params"]]
        optimizer = torch.optim.AdamW(used, betas=train.betas, eps=train.eps, fused=True)
        for local in self._local.values():
            state = {moment: torch.zeros_like(local, requires_grad=False) for moment in MOMENTS}
            optimizer.state[local] = {"step": torch.zeros((), device=self.device), **state}
        return optimizer

    def gather(self, buckets: Sequence[Bucket], flats: Sequence[Tensor] | None, everywhere: bool = False) -> None:
        """Write every weight, cast to the dtype of `buckets`, into `flats`; it is there on return. Collective.

        Args:
            buckets: all parameters in their order, as arl.sync.buckets cuts them.
            flats: memory of each bucket, (bytes of the bucket,) uint8. None: this rank keeps nothing.
            everywhere: every rank may keep the buckets; otherwise rank 0 alone.
        """
        gather_buckets(self._local_weights(), buckets, flats, self._group, everywhere)
        self._wait_for_copies()

    def tensors(self, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        """Return name, dtype and shape of every parameter, in the order of the model."""
        name_of_dtype = str(dtype).removeprefix("torch.")
        return tuple(TensorSpec(name, name_of_dtype, tuple(p.shape)) for name, p in self._shards.items())

    def full_state(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Copy every weight, in `dtype`, to the CPU of rank 0; returns nothing on the other ranks. Collective."""
        bucket = self.tensors(dtype)
        if dist.get_rank() != 0:
            self.gather([bucket], None)
            return {}
        flat = torch.empty(bucket_bytes_of(bucket), dtype=torch.uint8)
        self.gather([bucket], [flat])
        return unflatten(flat, bucket)

    def save(self, path: Path) -> None:
        """Write float32 master weights, config and tokenizer to `path`, all or nothing. Collective.

        Raises:
            DiskError: it cannot be written, or `path` exists and is not empty.
        """
        weights = self.full_state(torch.float32)
        if dist.get_rank() != 0:
            return
        temporary = path.with_name(f".{path.name}.partial")
        with writing(path):
            remove_any(temporary)  # of a save that was killed
            write_description(self.description, temporary, "float32")
            save_file(weights, temporary / "model.safetensors", metadata={"format": "pt"})
            temporary.rename(path)

    def training_state(self) -> "TrainingState":
        """Copy this rank's share of weights and optimizer. Collective.

        Later steps do not change the copy, and the next call does: it uses the same memory.
        """
        copied = self._copy.take(self._local_weights(), self._optimizer_state())
        self._wait_for_copies()
        return copied

    def _optimizer_state(self) -> dict[str, Tensor]:
        """Return this rank's rows of AdamW's state by the names that they have in a file, and the loss scale."""
        found = {LOSS_SCALE: torch.tensor([self.loss_scale.value, self.loss_scale.num_good])}
        for name, local in self._local.items():
            state = self._optimizer.state[local]
            found["step"] = state["step"]  # every parameter has the same
            for moment in MOMENTS:
                found[f"{moment}.{name}"] = state[moment]
        return found

    def write(self, state: "TrainingState", path: Path) -> None:
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
        """Continue with the AdamW state of a checkpoint, which any number of ranks may have written."""
        files = sorted(path.glob(f"{OPTIMIZER}*.safetensors"))  # in the order of the ranks
        with safe_open(files[0], framework="pt") as first_file:
            step = first_file.get_tensor("step")
            loss_scale, num_good = first_file.get_tensor(LOSS_SCALE).tolist()
        for name, local in self._local.items():
            state = self._optimizer.state[local]
            state["step"].copy_(step)
            for moment in MOMENTS:
                _read_rows(files, f"{moment}.{name}", self._shards[name], state[moment])
        if self.loss_scale.is_dynamic:
            self.loss_scale.value = loss_scale
            self.loss_scale.num_good = int(num_good)

    def _local_weights(self) -> dict[str, Tensor]:
        return {name: local.detach() for name, local in self._local.items()}

    def _wait_for_copies(self) -> None:
        """Wait until what was copied to host memory is there."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()


def _read_rows(files: Sequence[Path], name: str, parameter: Tensor, place: Tensor) -> None:
    """Read this rank's rows of a tensor, which is sharded as `parameter` is, into `place`, (rows, …), cast.

    Args:
        files: those of the ranks that have written it; each holds its rows.
    """
    first, end = own_rows(parameter)
    for part, file in enumerate(files):
        stored_first, stored_end = rows_of_part(len(parameter), len(files), part)
        begin = max(first, stored_first)
        stop = min(end, stored_end)
        if begin < stop:
            rows = rows_of(file, name, begin - stored_first, stop - stored_first)
            place[begin - first : stop - first].copy_(rows)


class TrainingState(NamedTuple):
    """Hold a copy of this rank's share of what a trainer needs to resume; empty on ranks of another copy."""

    weights: dict[str, Tensor]  # float32, whole tensors by parameter name
    optimizer: dict[str, Tensor]  # this rank's rows of AdamW's moments, its number of updates, and the loss scale


class TrainingCopy:
    """Hold the host memory of a copy, which the next copy uses again: allocated once, and pinned if there is a GPU.

    Args:
        specs: every parameter as a whole, float32.
        group: the ranks that share the parameters.
    """

    def __init__(self, specs: Sequence[TensorSpec], group: ShardGroup) -> None:
        self._group = group
        self._shares = deal(specs, group.parts)
        self._buckets = [make_buckets(share, BUCKET_BYTES) for share in self._shares]
        self._memory: list[Tensor] = []  # of the buckets of this rank's share, then of the optimizer's rows

    def take(self, shards: Mapping[str, Tensor], optimizer: Mapping[str, Tensor]) -> TrainingState:
        """Copy whole weights, those of this rank's share, from the shards of all ranks, and `optimizer`. Collective.

        On a GPU they are here when its current stream has come to this point.

        Args:
            optimizer: float32, the same names and shapes every time.
        """
        if not self._group.has_rank_0:
            return TrainingState({}, {})
        buckets = self._buckets[self._group.part]
        rows = specs_of(optimizer)
        self._memory = self._memory or allocate_buckets([*buckets, rows], "host")
        *whole, for_rows = self._memory
        collect_share(shards, self._buckets, whole, self._group)
        copied = unflatten(for_rows, rows)
        for name, place in copied.items():
            place.copy_(optimizer[name], non_blocking=True)
        return TrainingState(unflatten_all(whole, buckets), copied)

    def write(self, state: TrainingState, path: Path) -> None:
        """Write this rank's files of a checkpoint; rank 0 says in an index which file holds which weight."""
        part = self._group.part
        parts = self._group.parts
        if part == 0 and parts > 1:
            names: dict[str, str] = {}
            for number, share in enumerate(self._shares):
                names |= dict.fromkeys((spec.name for spec in share), file_of_part("model", number, parts))
            write_index(path, names, sum(map(bucket_bytes_of, self._shares)))
        if state.weights:
            save_file(state.weights, path / file_of_part("model", part, parts), metadata={"format": "pt"})
        held = {name: tensor for name, tensor in state.optimizer.items() if tensor.numel()}
        save_file(held, path / file_of_part(OPTIMIZER, part, parts))
