"""One rank that gathers its shards: `python -m tests.train.gather_world MODEL SHARD_RANKS`; see test_gathering."""

import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from arl.config.recipe import Train
from arl.launch.child import leave
from arl.models.load import DTYPES
from arl.sync.buckets import TensorSpec, bucket_bytes_of, make_buckets
from arl.sync.loading import unflatten_all
from arl.train.algorithms.ppo import PPO
from arl.train.gathering import gather_buckets, shard_group
from arl.train.learner import Learner
from arl.train.rendezvous import init_ranks
from arl.train.sharding import local_part, whole_tensor

DRAWS = 25


class Shapes(nn.Module):
    """Hold parameters of drawn shapes; every rank draws the same."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.weights = nn.ParameterList()
        for _ in range(rng.integers(1, 9)):
            shape = rng.integers(1, 12, size=rng.integers(1, 4))
            self.weights.append(nn.Parameter(torch.randn(*shape.tolist())))


def compare(model: nn.Module, dtype: str, bucket_bytes: int, everywhere: bool) -> None:
    """Compare the gathered buckets, bit by bit, with the whole tensors, which are gathered one by one and then cast."""
    parameters = dict(model.named_parameters())
    shards = {name: local_part(parameter.detach()) for name, parameter in parameters.items()}
    specs = [TensorSpec(name, dtype, tuple(parameter.shape)) for name, parameter in parameters.items()]
    buckets = make_buckets(specs, bucket_bytes)
    flats: list[Tensor] | None = None
    if everywhere or dist.get_rank() == 0:
        flats = [torch.full((bucket_bytes_of(bucket),), 255, dtype=torch.uint8) for bucket in buckets]
    group = shard_group(next(iter(parameters.values())))
    gather_buckets(shards, buckets, flats, group, everywhere)
    for name, parameter in parameters.items():
        whole = whole_tensor(shards[name], parameter).to(DTYPES[dtype])
        if flats is not None:
            found = unflatten_all(flats, buckets)[name]
            assert torch.equal(found.view(torch.uint8), whole.contiguous().view(torch.uint8)), name


def main() -> None:
    model, shard_ranks = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    init_ranks(deadline_seconds=300)
    ranks = dist.get_world_size()
    if shard_ranks == ranks:
        mesh = init_device_mesh("cpu", (ranks,))
    else:
        mesh = init_device_mesh("cpu", (ranks // shard_ranks, shard_ranks), mesh_dim_names=("copy", "shard"))
    for seed in range(DRAWS):
        shapes = Shapes(seed)
        fully_shard(shapes, mesh=mesh)
        compare(shapes, "bfloat16" if seed % 2 else "float32", 1 + 97 * seed, everywhere=seed % 3 == 0)
    section = Train(
        dtype="float32", minibatches=1, ranks=ranks, shard_ranks=None if shard_ranks == ranks else shard_ranks
    )
    learner = Learner(model, section, PPO())
    for dtype in DTYPES:
        for everywhere in (False, True):
            compare(learner.sharded.model, dtype, 10_000, everywhere)
    dist.barrier()
    leave(0)


if __name__ == "__main__":
    main()
