"""Show a sweep to a person: one line for each event, with how far the run is."""

from rich.console import Console

from arl.sweep.run_progress import RunProgress
from arl.sweep.sweep_directory import SweepRun


class SweepDisplay:
    """Print what happens to runs, and count those that are finished.

    Args:
        console: where to.
        total: runs of the sweep.
        finished: runs that were finished before.
    """

    def __init__(self, console: Console, total: int, finished: int) -> None:
        self._console = console
        self._total = total
        self._finished = finished

    def note(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def started(self, run: SweepRun, progress: RunProgress) -> None:
        """Tell of a run that starts or goes on."""
        how = f"goes on after step {progress.step}" if progress.step else "starts"
        self.note(f"{run}: {how}; log {run.log}")

    def evaluated(self, run: SweepRun, progress: RunProgress) -> None:
        """Tell of a new evaluation of a run; a dash stands for an unknown number."""
        self.note(
            f"{run}: step {progress.step}/{progress.steps}  reward {_number(progress.reward)}"
            f"  accuracy {_number(progress.accuracy)}"
        )

    def finished(self, run: SweepRun, progress: RunProgress, seconds: float) -> None:
        """Count a run that is finished."""
        self._finished += 1
        self.note(
            f"{run}: finished in {seconds:.0f} s, accuracy {_number(progress.accuracy)}; "
            f"{self._finished} of {self._total} runs"
        )

    def failed(self, run: SweepRun, why: str) -> None:
        """Tell of a run that failed."""
        self.note(f"{run}: failed: {why}")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
