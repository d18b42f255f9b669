"""Measure how long the engines had nothing to do because no group might start."""

from arl.engine.meters import Stopwatch


class GateMeter(Stopwatch):
    """Count the seconds in which admission is held back and no request is open."""

    def __init__(self) -> None:
        super().__init__()
        self._held = False

    @property
    def _counts(self) -> bool:
        return self._held and self._open == 0

    def hold(self, held: bool) -> None:
        """Note whether the gate or the cap keeps groups that the run needs from starting."""
        self._settle()
        self._held = held
