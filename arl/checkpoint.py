"""Checkpoints of a run: see RunCheckpoints."""

from pathlib import Path

from arl.rollout.state import ControllerState
from arl.train.base import Trainer


class RunCheckpoints:
    """Implements the controller's Checkpoints: every `every` steps (0: never), and the last."""

    def __init__(self, directory: Path, every: int, steps: int, trainer: Trainer) -> None:
        self._directory, self._every, self._steps, self._trainer = directory, every, steps, trainer

    def due(self, version: int) -> bool:
        return version == self._steps or (self._every > 0 and version % self._every == 0)

    async def copy(self, version: int) -> None:
        await self._trainer.save(self._directory / f"step_{version}")

    async def write(self, state: ControllerState) -> None:
        del state
