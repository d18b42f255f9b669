"""Average over time how many versions the engines are behind the trainer."""

from collections.abc import Callable

from msgspec import Struct

from arl.clock import now


class BehindState(Struct, frozen=True):
    """Keep what was summed up since the last step."""

    trained: int = 0  # the trainer's version
    version_seconds: float = 0.0  # since the last step


class VersionsBehind:
    """Sum up versions × seconds from one event to the next.

    Args:
        loaded: returns the engines' version.
        at: where the run goes on.
    """

    def __init__(self, loaded: Callable[[], int], at: BehindState) -> None:
        self._read = loaded
        self._trained = at.trained
        self._version_seconds = at.version_seconds
        self._loaded = loaded()
        self._since = now()

    def state(self) -> BehindState:
        """Return what a checkpoint keeps."""
        self.count()
        return BehindState(self._trained, self._version_seconds)

    def count(self) -> None:
        """Count the time until now; called at each event that changes a version."""
        at = now()
        self._version_seconds += (self._trained - self._loaded) * (at - self._since)
        self._loaded = self._read()
        self._since = at

    def end_step(self, version: int, seconds: float) -> float:
        """Return the mean since the last step, and count from this step on.

        Args:
            version: the trainer's, after the step.
            seconds: since the last step.
        """
        self.count()
        mean = self._version_seconds / max(seconds, 1e-9)
        self._trained = version
        self._version_seconds = 0.0
        return mean
