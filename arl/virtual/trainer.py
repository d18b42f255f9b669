"""A Trainer in this process, on virtual time.

Batch ─► pack_batch ─► Learner.step, at once ─► sleep what it costs ─► StepResult
                               └ snapshot ─► in line to be published, while the trainer goes on ─► WeightUpdate
"""

import asyncio
from pathlib import Path

import torch

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
        self._snapshots: dict[int, dict[str, torch.Tensor]] = {}  # in line to be written
        self._complete = {0: 0.0}  # version -> when its publication is over
        self._published = WeightUpdate(0, str(model))

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
        version, state = self._learner.version, self._learner.snapshot()
        seconds = costs.train_step + costs.trained_token * packing["tokens/trained"]
        await asyncio.sleep(seconds + costs.snapshot)
        self._snapshots[version] = state
        self._complete[version] = max(now(), self._complete[version - 1]) + costs.publish
        metrics = {name: value for name, value in computed.items() if not name.startswith("time/")}
        metrics |= {"time/train_s": seconds, "sync/blocking_seconds": costs.snapshot}
        return StepResult(version, metrics | packing)

    async def weights(self, version: int) -> WeightUpdate:
        """See Trainer. Versions are asked for in ascending order; those between are written too."""
        await asyncio.sleep(max(self._complete[version] - now(), 0.0))
        while self._published.version < version:
            following = self._published.version + 1
            state, config = self._snapshots.pop(following), self._learner.config_json()
            self._published = write_weights(self._publications, following, config, state)
        assert self._published.version == version, "only the newest publication can be had"
        return self._published

    async def save(self, path: Path) -> None:
        """See Trainer: float32 weights, config and tokenizer. Free of cost."""
        self._learner.sharded.save(path, tokenizer_path=self._model)
