"""Say where a run ends: after its steps, or as soon as enough tokens are trained."""

from arl.types import Batch


class Horizon:
    """Count trained tokens, and end the run with the step that reaches `tokens`.

    Args:
        steps: versions of the run, at most.
        tokens: loss tokens after which no further step starts; None: only `steps` counts.
    """

    def __init__(self, steps: int, tokens: int | None) -> None:
        self.steps = steps
        self._tokens = tokens
        self.num_tokens = 0  # trained so far

    def restore(self, version: int, num_tokens: int) -> None:
        """Go on from a checkpoint, which may be the last one."""
        self.num_tokens = num_tokens
        self._end_if_reached(version)

    def count(self, batch: Batch) -> None:
        """Count what a step is about to train. Its version is the last one if that is enough."""
        for group in batch.groups:
            self.num_tokens += sum(int(trajectory.loss_mask.sum()) for trajectory in group.trajectories)
        self._end_if_reached(batch.version + 1)

    def _end_if_reached(self, version: int) -> None:
        if self._tokens is not None and self.num_tokens >= self._tokens:
            self.steps = version
