"""The trainer seam: what the controller asks of anything that learns."""

from pathlib import Path
from typing import Protocol

from arl.types import Batch, StepResult, WeightUpdate


class Trainer(Protocol):
    async def step(self, batch: Batch) -> StepResult:
        """Consume one batch; return when the new version exists and its snapshot is taken.

        Raises:
            TrainerError: a rank raised or died.
        """

    async def weights(self, version: int) -> WeightUpdate:
        """The published weights of `version` once they are written; if they never were, of the next newer one."""

    async def save(self, path: Path) -> None:
        """Return when weights and optimizer are copied; they are written to `path` while training goes on."""

    async def saved(self) -> None:
        """Return when what `save` copied last is written: what `from_pretrained` reads, and the optimizer's state."""
