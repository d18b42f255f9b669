"""Train in this process, in virtual time.

Batch ─► pack_batch ─► join_shard ─► Learner.step, at once ─► sleep what it costs ─► StepResult
                                             └ snapshot ─► VirtualPublisher, while the trainer goes on ─► WeightUpdate
"""

import asyncio
from pathlib import Path

import numpy as np

from arl.clock import now
from arl.config.recipe import Recipe
from arl.data.model_limits import model_flops
from arl.metrics.names import MEASURED
from arl.models.load import DTYPES
from arl.sync.choose import kept_versions, oldest_age
from arl.sync.targets import FileTarget, MemoryTarget
from arl.sync.virtual_publisher import VirtualPublisher
from arl.train.learner import Learner
from arl.train.micro_batch import join_shard, pack_sizes, packing_report
from arl.train.packing import Packing, pack_batch, trained_tokens
from arl.types import Batch, StartingVersions, StepResult, WeightUpdate


class InProcessTrainer:
    """Implement Trainer with one Learner of world size 1.

    Args:
        recipe: its sections `train`, `objective`, `advantage` and `output`, and the costs in `virtual`, are used.
        versions: the model and version to begin with, and older versions that are published already.
        publications: directory in which weights are published.
        lags: the recipe's exact lags, (steps, P) versions; None: staleness is bounded instead.
    """

    def __init__(
        self,
        recipe: Recipe,
        versions: StartingVersions,
        publications: Path,
        lags: np.ndarray | None = None,
    ) -> None:
        version = versions.version
        self._costs = recipe.virtual
        self._packing = Packing(
            recipe.train,
            recipe.objective,
            recipe.advantage,
            ranks=1,
            flops=model_flops(versions.model),
            records=recipe.output.trajectories,
        )
        self._learner = Learner(
            Path(versions.model),
            recipe.train.model_copy(update={"threads": 1}),
            recipe.objective.located(versions.base),
            temperature=recipe.rollout.temperature,
            version=version,
            resumed=version > 0,
            advantage=recipe.advantage,
            oldest_age=oldest_age(recipe, lags),
            seed=recipe.seed,
            publishes_adapters=recipe.publishes_adapters,
        )
        assert self._learner.policy.device.type == "cpu", "the virtual world computes on the CPU"
        target = FileTarget if recipe.sync.transport == "file" else MemoryTarget
        self._publisher = VirtualPublisher(
            target(publications, self._learner.config_json()),
            kept_versions(recipe, lags),
            self._costs.publish,
            versions.older or {version: versions.model},
            every_version=lags is not None,
            checked_as=DTYPES[recipe.engine.dtype] if recipe.sync.check else None,
        )
        if versions.older:  # the checkpoint was cut when its publication began, so that begins again
            self._publisher.begin(version, self._learner.snapshot())

    async def step(self, batch: Batch) -> StepResult:
        """See Trainer. `time/train_s` and `sync/blocking_seconds` are virtual.

        Raises:
            InputError: a trajectory longer than train.capacity.
            TrainerError: a loss or gradient that is not finite, too often.
        """
        costs = self._costs
        shards, packing = pack_batch(batch, self._packing)
        shard = join_shard(shards[0])
        sizes = pack_sizes(shard, self._packing.flops)
        packing |= packing_report(batch, [sizes], self._packing)
        computed = self._learner.step(shard)
        version = self._learner.version
        state = self._learner.snapshot()
        seconds = costs.train_step + costs.trained_token * packing["tokens/trained"]
        await asyncio.sleep(seconds + costs.snapshot)
        written = now()
        await self._publisher.publish(version, state)
        metrics = packing | {name: value for name, value in computed.items() if name not in MEASURED}
        metrics["time/train_s"] = seconds
        metrics["sync/blocking_seconds"] = costs.snapshot + (now() - written)
        tokens = trained_tokens(batch, shards, [self._learner.log.logprobs()], self._packing)
        return StepResult(version, metrics, tokens)

    async def weights(self, version: int) -> WeightUpdate:
        """See Trainer."""
        return await self._publisher.published(version)

    async def save(self, path: Path) -> None:
        """See Trainer. Costs no virtual time."""
        self._learner.write(self._learner.training_state(), path)

    def save_model(self, path: Path) -> None:
        """Write the present weights, config and tokenizer to `path`, all or nothing. Costs no virtual time."""
        self._learner.policy.save(path)

    async def saved(self) -> None:
        """See Trainer. Returns at once, because `save` has written everything."""
