"""Which cores and devices each process gets, and who may use them when: the whole meaning of `mode`.

             disaggregated                          collocated
CPU threads  engines half of the cores, ranks half  all cores for either side
GPUs         engines the first, ranks the rest      the same for both sides
lease        nobody waits                           engines sleep from a step until its swap, without their memory
"""

import asyncio
import os
from typing import NamedTuple

from arl.config.recipe import Recipe
from arl.engine.base import Engine
from arl.errors import RecipeError


class Share(NamedTuple):
    """What one process may use."""

    threads: int
    gpu: str | None  # as CUDA_VISIBLE_DEVICES names it, or several of them with commas; None: CPU
    in_turns: bool = False  # with the other side: who is not at work gives up its memory

    @property
    def num_gpus(self) -> int:
        return 0 if self.gpu is None else len(self.gpu.split(","))

    @property
    def env(self) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(self.threads), "CUDA_VISIBLE_DEVICES": self.gpu or ""}


class Placement(NamedTuple):
    engines: list[Share]  # (replicas,)
    ranks: list[Share]  # (ranks,)


def place(recipe: Recipe, num_cores: int, gpus: list[str]) -> Placement:
    """Divide `num_cores` and `gpus` between the two sides.

    Raises:
        RecipeError: there are GPUs, but fewer than the recipe's processes need; or none, where only they will do.
    """
    replicas, ranks, wide = recipe.engine.replicas, recipe.train.ranks, recipe.engine.tensor_parallel
    together = recipe.mode == "collocated"
    needed = max(replicas * wide, ranks) if together else replicas * wide + ranks
    if recipe.world_traits.one_process:
        gpus = []
    if gpus and len(gpus) < needed:
        raise RecipeError(
            f"mode {recipe.mode} with {replicas} engine replicas on {wide} GPUs each and {ranks} ranks needs {needed} "
            f"GPUs; {len(gpus)} visible: use mode collocated, fewer processes, or CUDA_VISIBLE_DEVICES= for the CPU"
        )
    if wide > 1 and not gpus:
        raise RecipeError(f"engine.tensor_parallel {wide}: no GPU is visible, and on a CPU it is 1; use more replicas")
    engine_cores = num_cores if together else max(num_cores // 2, 1)
    rank_cores = num_cores if together else max(num_cores - engine_cores, 1)
    engine_threads = recipe.engine.threads or max(engine_cores // replicas, 1)
    rank_threads = recipe.train.threads or max(rank_cores // ranks, 1)
    first_rank = 0 if together else replicas * wide
    return Placement(
        [Share(engine_threads, ",".join(gpus[i * wide : (i + 1) * wide]) or None, together) for i in range(replicas)],
        [Share(rank_threads, gpus[first_rank + i] if gpus else None) for i in range(ranks)],
    )


def visible_cores() -> int:
    return len(os.sched_getaffinity(0))


def visible_gpus() -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    named = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return named[:count] if named else [str(i) for i in range(count)]


class NoLease:
    """Disaggregated: both sides own their devices."""

    async def acquire(self) -> None:
        """Nothing to wait for."""

    async def release(self) -> None:
        """Nothing to hand back."""


class SharedDeviceLease:
    """Collocated: from the start of a step until its weights are loaded, the engines sleep."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._turn = asyncio.Lock()

    async def acquire(self) -> None:
        await self._turn.acquire()
        await self._engine.pause()

    async def release(self) -> None:
        await self._engine.resume()
        self._turn.release()
