"""Define the trainer seam: what the controller calls on anything that learns.

controller ─► step(batch) ─► StepResult        weights(version) ─► WeightUpdate ─► engines
"""

from pathlib import Path
from typing import Protocol

from arl.types import Batch, StepResult, WeightUpdate


class Trainer(Protocol):
    """Train a policy. Implementations: TrainerClient (processes), InProcessTrainer (virtual time).

    A worked example, which learns nothing:

        class NullTrainer:
            def __init__(self, path):
                self._version, self._path = 0, path

            async def step(self, batch):
                self._version += 1
                return StepResult(self._version, {"loss": 0.0})

            async def weights(self, version):
                return WeightUpdate(version, self._path, "file")

            async def save(self, path): ...

            async def saved(self): ...
    """

    async def step(self, batch: Batch) -> StepResult:
        """Train on one batch; returns when the new version exists and its snapshot is taken.

        Raises:
            TrainerError: a rank raised or died.
        """

    async def weights(self, version: int) -> WeightUpdate:
        """Wait for the published weights of `version`; if that one is skipped, of the next newer one."""

    async def save(self, path: Path) -> None:
        """Copy weights and optimizer, and start to write them to `path`; training may go on when this returns."""

    async def saved(self) -> None:
        """Wait until the last `save` is written: a directory for `from_pretrained`, and the optimizer's state."""
