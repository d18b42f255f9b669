"""A user's world: the virtual one on a cluster whose training steps take a different time each, drawn by the seed."""

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator
from pathlib import Path

from arl.config.worlds import VIRTUAL
from arl.run.virtual import VirtualWorld
from arl.run.world import Parts, Start
from arl.train.base import Trainer
from arl.types import Batch, StepResult, WeightUpdate


class JitteryTrainer:
    """A Trainer whose step v takes an additional time, drawn by (seed, v)."""

    def __init__(self, trainer: Trainer, seed: int) -> None:
        self._trainer = trainer
        self._seed = seed

    async def step(self, batch: Batch) -> StepResult:
        rng = random.Random(f"{self._seed} {batch.version}")
        await asyncio.sleep(rng.uniform(1.0, 2.0))
        return await self._trainer.step(batch)

    async def weights(self, version: int) -> WeightUpdate:
        return await self._trainer.weights(version)

    async def save(self, path: Path) -> None:
        await self._trainer.save(path)

    async def saved(self) -> None:
        await self._trainer.saved()


class JitteryWorld(VirtualWorld):
    # The costs of this world are not those of the recipe: a replay takes the seconds that were recorded.
    traits = dataclasses.replace(VIRTUAL, recipe_costs=False)

    @contextlib.asynccontextmanager
    async def open(self, start: Start) -> AsyncIterator[Parts]:
        async with super().open(start) as parts:
            trainer = JitteryTrainer(parts.trainer, start.recipe.seed)
            yield dataclasses.replace(parts, trainer=trainer)
