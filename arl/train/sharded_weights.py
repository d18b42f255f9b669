"""Hold this rank's shards of a model, gather them, and save them as a model.

    model directory ─► empty model ─► shard ─► fill_model
    gather ─► what is published, or saved

Weights that are trained are float32, frozen ones of the dtype that computes. LoRA adapters are merged in float32, so
all that leaves is as of a model without them.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from arl.config.recipe import Train
from arl.data.hub import SOURCE
from arl.files import remove_any, writing
from arl.models.load import DTYPES, check_weights, empty_model
from arl.models.lora import inject
from arl.models.model_files import read_description, with_base, write_description
from arl.models.weights import LORA, fill_model, plain_name
from arl.sync.buckets import TensorSpec, bucket_bytes_of
from arl.sync.loading import unflatten
from arl.train.gathering import Bucket, gather_buckets, shard_group
from arl.train.sharded_adapters import draw_adapters, merged
from arl.train.sharding import local_part, shard


class ShardedWeights:
    """Hold the sharded parameters of this rank; `init_ranks` comes first.

    Args:
        path: model directory.
        train: how to shard.
        device: of this rank.
        frozen: nothing trains it; its weights are in host memory while nothing computes with them.
        seed: of the adapters.
    """

    def __init__(
        self, path: str | Path, train: Train, device: torch.device, frozen: bool = False, seed: int = 0
    ) -> None:
        self.device = device
        self.dtype = DTYPES[train.dtype]
        self.model, new = self.empty(path)
        self.description = read_description(path)  # now: the directory may change, or be gone, while a run goes on
        self._lora = None if frozen else train.lora
        if frozen:
            self.model.requires_grad_(False)
        if self._lora is not None:
            self._lora = inject(self.model, self._lora)
            self.description[SOURCE] = with_base(self.description[SOURCE], path, self._lora)
        for parameter in self.model.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(self.dtype)  # not buffers: rotary frequencies stay float32
        self._root = shard(self.model, train, device, frozen)
        fill_model(self.model, path, device, in_host_memory=frozen, new=new)
        draw_adapters(self.model, seed)
        self._shards = dict(self.model.named_parameters())
        self._local = {name: local_part(p.detach()) for name, p in self._shards.items()}
        self._group = shard_group(next(iter(self._shards.values())))
        self.publishes_adapters = False  # and not merged weights

    def empty(self, path: str | Path) -> tuple[PreTrainedModel, tuple[str, ...]]:
        """Build the model of `path` without its weights; return it, and its parameters that are not in the files."""
        model = empty_model(path)
        check_weights(model, path)
        return model, ()

    def gather(self, buckets: Sequence[Bucket], flats: Sequence[Tensor] | None, everywhere: bool = False) -> None:
        """Write every weight, cast to the dtype of `buckets`, into `flats`; it is there on return. Collective.

        Args:
            buckets: all parameters in their order, merged, or all adapters, as arl.sync.buckets cuts them.
            flats: memory of each bucket, (bytes of the bucket,) uint8. None: this rank keeps nothing.
            everywhere: every rank may keep the buckets; otherwise rank 0 alone.
        """
        weights = self._local_adapters() if LORA in buckets[0][0].name else self._local_weights()
        gather_buckets(weights, buckets, flats, self._group, everywhere)
        self._wait_for_copies()

    def tensors(self, dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        """Return name, dtype and shape of every parameter, in the order of the model; adapters are merged."""
        names = [name for name in self._shards if LORA not in name]
        return self._specs(names, dtype)

    def published(self) -> tuple[TensorSpec, ...]:
        """Return what engines are given of each version, in the dtype that computes."""
        if not self.publishes_adapters:
            return self.tensors(self.dtype)
        return self._specs(self._local_adapters(), self.dtype)

    def _specs(self, names: Iterable[str], dtype: torch.dtype) -> tuple[TensorSpec, ...]:
        """Describe some parameters by the names that they have outside."""
        name_of_dtype = str(dtype).removeprefix("torch.")
        shapes = {plain_name(name): tuple(self._shards[name].shape) for name in names}
        return tuple(TensorSpec(name, name_of_dtype, shape) for name, shape in shapes.items())

    def full_state(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Copy every weight, in `dtype`, to the CPU of rank 0; returns nothing on the other ranks. Collective."""
        return self.copied(self.tensors(dtype))

    def copied(self, bucket: Bucket) -> dict[str, Tensor]:
        """Copy all of `bucket` to the CPU of rank 0; returns nothing on the other ranks. Collective."""
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

    def load(self, shards: Mapping[str, Tensor]) -> None:
        """Put other weights into a frozen model, which keeps its own copy; `shards` are this rank's, by name."""
        self._wait_for_copies()  # of the weights that it had, to the device
        for name, parameter in self._shards.items():  # the present ones: FSDP2 may have moved them
            local_part(parameter.detach()).copy_(shards[name])

    def in_host_memory(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Copy this rank's shards."""
        return {name: local.to("cpu", dtype, copy=True) for name, local in self._local_weights().items()}

    def _local_adapters(self) -> dict[str, Tensor]:
        return {name: local.detach() for name, local in self._local.items() if LORA in name}

    def _local_weights(self) -> dict[str, Tensor]:
        local = {name: local.detach() for name, local in self._local.items()}
        if self._lora is None:
            return local
        return merged(local, self._shards, self._lora.alpha / self._lora.rank)

    def _wait_for_copies(self) -> None:
        """Wait until what was copied to host memory is there."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
