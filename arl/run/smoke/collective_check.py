"""Run one rank of the collective check: `python -m arl.run.smoke.collective_check MEGABYTES`, started by the launcher.

    every rank: all_reduce ─► the sum is known ─► seconds
                broadcast from each rank in turn ─► the content is known ─► seconds
    rank 0 prints one line of JSON

Bus bandwidth is as NCCL's tests define it: what each link carries, 2 (n − 1) / n of the bytes in an all_reduce.
"""

import functools
import json
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from arl.launch.child import leave
from arl.train.rendezvous import init_ranks

REPEATS = 3
MODULUS = 251  # values repeat with it; sums over thousands of ranks are exact in float32
DEADLINE_SECONDS = 60.0  # of one collective


class Collectives:
    """Run collectives whose results are known, and time them; `init_ranks` comes first.

    Args:
        megabytes: size of the tensor that travels.
        device: of this rank.
    """

    def __init__(self, megabytes: int, device: torch.device) -> None:
        self.wrong: list[str] = []  # the kind of each collective whose result was wrong on this rank
        self.num_floats = megabytes * 10**6 // 4
        self._device = device
        self._rank = dist.get_rank()
        self._size = dist.get_world_size()
        self._values = (torch.arange(self.num_floats, device=device) % MODULUS).float()

    def all_reduce(self) -> float:
        """Sum over all ranks; return the seconds."""
        sum_of_ranks = self._size * (self._size + 1) // 2
        return self._time("all_reduce", dist.all_reduce, sum_of_ranks)

    def broadcasts(self) -> list[float]:
        """Broadcast from each rank in turn; return the seconds of each."""
        seconds = []
        for source in range(self._size):
            broadcast = functools.partial(dist.broadcast, src=source)
            seconds.append(self._time("broadcast", broadcast, source + 1))
        return seconds

    def _time(self, name: str, collective: Callable[[Tensor], Any], factor: int) -> float:
        """Return the seconds of the fastest run, after one that warms up.

        Args:
            factor: what this rank's values are multiplied by afterwards; before it is 1 + its rank.
        """
        start = self._values * (self._rank + 1)
        expected = self._values * factor
        seconds = []
        for _ in range(REPEATS + 1):
            buffer = start.clone()
            dist.barrier()
            self._wait()
            began = perf_counter()
            collective(buffer)
            self._wait()
            seconds.append(perf_counter() - began)
            if not torch.equal(buffer, expected):
                self.wrong.append(name)
        return min(seconds[1:])

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def check(megabytes: int) -> dict[str, Any]:
    """Run the collectives on this rank.

    Returns:
        Backend, device and number of ranks; how many results were wrong on any rank; GB/s of all_reduce, and of the
        slowest broadcast.
    """
    device = init_ranks(DEADLINE_SECONDS)
    collectives = Collectives(megabytes, device)
    reduced = collectives.all_reduce()
    broadcasts = collectives.broadcasts()
    failures = torch.tensor([len(collectives.wrong)], device=device)
    dist.all_reduce(failures)
    gigabytes = collectives.num_floats * 4 / 1e9
    size = dist.get_world_size()
    return {
        "backend": dist.get_backend(),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "nccl": _nccl_version() if device.type == "cuda" else None,
        "ranks": size,
        "megabytes": megabytes,
        "wrong": int(failures),
        "all_reduce_gb_per_s": round(gigabytes / reduced, 3),
        "all_reduce_bus_gb_per_s": round(2 * (size - 1) / size * gigabytes / reduced, 3),
        "slowest_broadcast_gb_per_s": round(gigabytes / max(broadcasts), 3),
        "slowest_broadcast_from": broadcasts.index(max(broadcasts)),
    }


def _nccl_version() -> str:
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version))


def main() -> None:
    """Check, and have rank 0 print what it found."""
    found = check(int(sys.argv[1]))
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.destroy_process_group()
    leave(0)


if __name__ == "__main__":
    main()
