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
        """Write the current model and tokenizer to `path` as `from_pretrained` reads them."""
