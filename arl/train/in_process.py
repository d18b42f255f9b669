"""Trains in this process, in virtual time.

Batch ─► pack_batch ─► Learner.step, at once ─► sleep what it costs ─► StepResult
                               └ snapshot ─► Publisher, while the trainer goes on ─► WeightUpdate
"""

import asyncio
from pathlib import Path

import numpy as np

from arl.clock import now
from arl.config.recipe import Recipe
from arl.data.model_limits import model_flops
from arl.metrics.names import MEASURED
from arl.models.load import DTYPES
from arl.sync.published_versions import kept_versions
from arl.sync.targets import FileOutlet, MemoryOutlet
from arl.sync.virtual_publisher import Publisher
from arl.train.learner import Learner
from arl.train.packer import Packing, pack_batch
from arl.types import Batch, StartingVersions, StepResult, WeightUpdate


class InProcessTrainer:
    """Trainer protocol over one Learner of world size 1.

    Args:
        recipe: `train`, `objective`, `advantage` and the costs in `virtual`.
        versions: the weights that it starts with.
        publications: directory of published weights.
        logs: directory for the shard of a step that cannot be trained.
        lags: those of the recipe; see arl.rollout.lag_table.
    """

    def __init__(
        self,
        recipe: Recipe,
        versions: StartingVersions,
        publications: Path,
        logs: Path,
        lags: np.ndarray | None = None,
    ) -> None:
        model = Path(versions.model)
        version = versions.version
        train = recipe.train.model_copy(update={"threads": 1})
        self._costs = recipe.virtual
        self._model = model
        self._packing = Packing.of(
            recipe.train, recipe.objective, recipe.advantage, ranks=1, flops=model_flops(versions.model)
        )
        self._learner = Learner(
            model,
            train,
            recipe.objective,
            recipe.rollout.temperature,
            version,
            resumed=version > 0,
            evidence=logs,
        )
        assert self._learner.sharded.device.type == "cpu", "the virtual world computes on the CPU"
        outlet = FileOutlet if recipe.sync.transport == "file" else MemoryOutlet
        self._publisher = Publisher(
            outlet(publications, self._learner.config_json()),
            kept_versions(recipe, lags),
            self._costs.publish,
            versions.older or {version: versions.model},
            every_version=lags is not None,
            checked_as=DTYPES[recipe.engine.dtype] if recipe.sync.check else None,
        )
        if versions.older:  # the checkpoint was taken while its version was being published, so publish it again
            self._publisher.begin(version, self._learner.snapshot())

    async def step(self, batch: Batch) -> StepResult:
        """See Trainer. `time/train_s` and `sync/blocking_seconds` are virtual.

        Raises:
            InputError: a trajectory longer than train.capacity.
            TrainerError: a loss or gradient that is not finite, too often.
        """
        costs = self._costs
        (shard,), packing = pack_batch(batch, self._packing)
        computed = self._learner.step(shard)
        version = self._learner.version
        state = self._learner.snapshot()
        seconds = costs.train_step + costs.trained_token * packing["tokens/trained"]
        await asyncio.sleep(seconds + costs.snapshot)
        written = now()
        await self._publisher.publish(version, state)
        metrics = {name: value for name, value in computed.items() if name not in MEASURED}
        metrics |= {"time/train_s": seconds, "sync/blocking_seconds": costs.snapshot + (now() - written)}
        return StepResult(version, metrics | packing)

    async def weights(self, version: int) -> WeightUpdate:
        """See Trainer."""
        return await self._publisher.published(version)

    async def save(self, path: Path) -> None:
        """See Trainer. It takes no virtual time."""
        self._learner.sharded.write(self._learner.sharded.training_state(), path, tokenizer_path=self._model)

    async def saved(self) -> None:
        """See Trainer. `save` has written everything."""
