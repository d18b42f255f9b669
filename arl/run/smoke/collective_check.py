"""Run one rank of the collective check: `python -m arl.run.smoke.collective_check MEGABYTES`, started by the launcher.

    every rank: all_reduce ─► the sum is known ─► seconds
                broadcast from each rank in turn ─► the content is known ─► seconds
    rank 0 prints one line of JSON

Bus bandwidth is as NCCL's tests define it: what each link carries, 2 (n − 1) / n of the bytes in an all_reduce.
"""

import json
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

REPEATS = 3
MODULUS = 251  # values repeat with it; sums over thousands of ranks are exact in float32
DEADLINE_SECONDS = 60.0  # of one collective


def check(megabytes: int) -> dict[str, Any]:
    """Run the collectives on this rank.

    Returns:
        Backend, device and number of ranks; whether every result was right; GB/s of the slowest collective of each
        kind. `wrong` names what was wrong on this rank.
    """
    import torch
    import torch.distributed as dist

    from arl.train.rendezvous import init_ranks

    device = init_ranks(DEADLINE_SECONDS)
    rank = dist.get_rank()
    size = dist.get_world_size()
    count = megabytes * 10**6 // 4
    values = (torch.arange(count, device=device) % MODULUS).float()
    wrong: list[str] = []

    def timed(collective: Callable[[torch.Tensor], Any], expected: torch.Tensor, start: torch.Tensor) -> float:
        seconds = []
        for _ in range(REPEATS + 1):
            buffer = start.clone()
            dist.barrier()
            _wait(device)
            began = perf_counter()
            collective(buffer)
            _wait(device)
            seconds.append(perf_counter() - began)
            if not torch.equal(buffer, expected):
                wrong.append(collective.__name__)
        return min(seconds[1:])

    def all_reduce(buffer: torch.Tensor) -> None:
        dist.all_reduce(buffer)

    reduced = timed(all_reduce, values * (size * (size + 1) // 2), values * (rank + 1))
    broadcasts = []
    for source in range(size):

        def broadcast(buffer: torch.Tensor, source: int = source) -> None:
            dist.broadcast(buffer, source)

        broadcasts.append(timed(broadcast, values * (source + 1), values * (rank + 1)))
    failures = torch.tensor([len(wrong)], device=device)
    dist.all_reduce(failures)
    gigabytes = count * 4 / 1e9
    on_gpu = device.type == "cuda"
    return {
        "backend": dist.get_backend(),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()) if on_gpu else None,  # type: ignore[no-untyped-call]
        "ranks": size,
        "megabytes": megabytes,
        "wrong": int(failures),
        "all_reduce_gb_per_s": round(gigabytes / reduced, 3),
        "all_reduce_bus_gb_per_s": round(2 * (size - 1) / size * gigabytes / reduced, 3),
        "slowest_broadcast_gb_per_s": round(gigabytes / max(broadcasts), 3),
        "slowest_broadcast_from": broadcasts.index(max(broadcasts)),
    }


def _wait(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    """Check, and have rank 0 print what it found."""
    import torch.distributed as dist

    from arl.launch.child import leave

    found = check(int(sys.argv[1]))
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()
    leave(0)


if __name__ == "__main__":
    main()
