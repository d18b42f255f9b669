"""A Trainer in this process, on virtual time.

Batch ─► pack_batch ─► Learner.step, at once ─► sleep what it costs ─► StepResult
                              └ snapshot ─► written at once, published when that has cost its time
"""

import asyncio
from pathlib import Path

from arl.clock import now
from arl.recipe import Recipe
from arl.sync.publish import write_weights
from arl.train.learner import Learner
from arl.train.packer import pack_batch
from arl.types import Batch, StepResult, WeightUpdate


class InProcessTrainer:
    """Trainer protocol over one Learner of world size 1.

    Args:
        recipe: `train`, `objective` and the costs in `virtual`.
        model: directory of version 0.
        publications: directory that versions are written to.
    """

    def __init__(self, recipe: Recipe, model: Path, publications: Path) -> None:
        self._train, self._costs = recipe.train.model_copy(update={"threads": 1}), recipe.virtual
        self._model, self._publications = model, publications
        self._learner = Learner(model, self._train, recipe.objective, recipe.rollout.temperature)
        assert self._learner.sharded.device.type == "cpu", "the virtual world computes on the CPU"
        self._published = {0: (WeightUpdate(0, str(model)), 0.0)}  # version -> update, and when it is complete
        self._publisher_free = 0.0

    async def ready(self) -> None:
        """The model is loaded already."""

    async def step(self, batch: Batch) -> StepResult:
        """See Trainer. `time/train_s` and `sync/blocking_seconds` are virtual.

        Raises:
            InputError: a trajectory longer than train.capacity.
            TrainerError: a loss or gradient that is not finite.
        """
        costs = self._costs
        (shard,), packing = pack_batch(batch, self._train.minibatches, self._train.capacity, ranks=1)
        computed = self._learner.step(shard)
        state = self._learner.snapshot()
        seconds = costs.train_step + costs.trained_token * packing["tokens/trained"]
        await asyncio.sleep(seconds + costs.snapshot)
        version = self._learner.version
        self._publisher_free = max(now(), self._publisher_free) + costs.publish
        update = write_weights(self._publications, version, self._learner.config_json(), state)
        self._published[version] = (update, self._publisher_free)
        metrics = {name: value for name, value in computed.items() if not name.startswith("time/")}
        metrics |= {"time/train_s": seconds, "sync/blocking_seconds": costs.snapshot}
        return StepResult(version, metrics | packing)

    async def weights(self, version: int) -> WeightUpdate:
        """See Trainer."""
        update, complete = self._published[version]
        await asyncio.sleep(max(complete - now(), 0.0))
        return update

    async def save(self, path: Path) -> None:
        """See Trainer: float32 weights, config and tokenizer. Free of cost."""
        self._learner.sharded.save(path, tokenizer_path=self._model)
