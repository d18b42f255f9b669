"""Join the process group of the trainer's ranks, which find each other through torchrun's environment variables."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store, TCPStore

from arl.sync.process_group import listen


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
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        rank = int(os.environ.get("RANK", "0")) if world_size > 1 else 0
        store = _open_store(rank, deadline_seconds) if world_size > 1 else HashStore()
        dist.init_process_group(
            "nccl" if cuda else "gloo",
            timeout=timedelta(seconds=deadline_seconds),
            store=store,
            rank=rank,
            world_size=world_size,
        )
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")


def _open_store(rank: int, seconds: float) -> Store:
    """Return the store through which ranks meet. If torchrun's agent does not serve it, rank 0 does.

    Rank 0 listens on MASTER_ADDR alone; torch's own socket would listen on every address.
    """
    host = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        store, _ = listen(host, seconds, port)
        return store
    return TCPStore(host, port, timeout=timedelta(seconds=seconds))
