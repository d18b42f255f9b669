"""The trainer seam: what the controller asks of anything that learns."""

from pathlib import Path
from typing import Protocol

from arl.types import Batch, StepResult, WeightUpdate


class Trainer(Protocol):
    async def ready(self) -> None:
        """Return when it can take its first step.

        Raises:
            TrainerError, DeadlineError: it could not start, or not in time.
        """

    async def step(self, batch: Batch) -> StepResult:
        """Consume one batch; return when the new version exists and its snapshot is taken.

        Raises:
            TrainerError: a rank raised or died.
        """

    async def weights(self, version: int) -> WeightUpdate:
        """The published weights of `version`, once every byte of them is written."""

    async def save(self, path: Path) -> None:
        """Write the current model and tokenizer to `path` as `from_pretrained` reads them."""
