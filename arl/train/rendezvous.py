"""Join the process group of the trainer's ranks, which find each other through torchrun's environment variables."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store

from arl.sync.process_group import reach_store, serve_store


def init_ranks(deadline_seconds: float) -> torch.device:
    """Join the process group, or make one of this process alone, and return the device to compute on.

    Reads RANK, WORLD_SIZE and LOCAL_RANK, and with several ranks MASTER_ADDR and MASTER_PORT.

    Args:
        deadline_seconds: of every collective.
    """
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not dist.is_initialized():
        _join("nccl" if cuda else "gloo", deadline_seconds)
    if not cuda:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _join(backend: str, seconds: float) -> None:
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        rank = 0
        store: Store = HashStore()
    else:
        rank = int(os.environ["RANK"])
        store = _open_store(rank, seconds)
    dist.init_process_group(
        backend,
        timeout=timedelta(seconds=seconds),
        store=store,
        rank=rank,
        world_size=world_size,
    )


def _open_store(rank: int, seconds: float) -> Store:
    """Return the store through which ranks meet. If torchrun's agent does not serve it, rank 0 does.

    Rank 0 listens on MASTER_ADDR alone; torch's own socket would listen on every address.
    """
    host = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return serve_store(host, seconds, port)
    return reach_store(host, port, seconds)
