"""Show a sweep to a person: one live table in a terminal, and one plain line per event anywhere else."""

from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from arl.sweep.run_progress import RunProgress
from arl.sweep.sweep_directory import SweepRun

REFRESHES_PER_SECOND = 2


class SweepDisplay:
    """Show the runs that go on, and count the others.

    Args:
        console: where to.
        total: runs of the sweep.
        finished: runs that were finished before.
    """

    def __init__(self, console: Console, total: int, finished: int) -> None:
        self._console = console
        self._total = total
        self._finished = finished
        self._failed = 0
        self._open: dict[str, tuple[SweepRun, RunProgress]] = {}  # by run directory
        self._live = Live(
            console=console,
            get_renderable=self._draw,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live.is_started:
            self._live.stop()

    def note(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def started(self, run: SweepRun, progress: RunProgress) -> None:
        """Show a run that starts or goes on."""
        self._open[run.relative] = (run, progress)
        if not self._console.is_terminal:
            how = f"goes on after step {progress.step}" if progress.step else "starts"
            self.note(f"{run}: {how}; log {run.log}")

    def evaluated(self, run: SweepRun) -> None:
        """Show a new evaluation of a run."""
        if not self._console.is_terminal:
            self.note(f"{run}: {_line(self._open[run.relative][1])}")

    def finished(self, run: SweepRun, seconds: float) -> None:
        """Count a run that is finished."""
        _, progress = self._open.pop(run.relative)
        self._finished += 1
        if not self._console.is_terminal:
            self.note(
                f"{run}: finished in {seconds:.0f} s, accuracy {_number(progress.accuracy)}; "
                f"{self._finished} of {self._total} runs"
            )

    def failed(self, run: SweepRun, why: str) -> None:
        """Show a run that failed."""
        self._open.pop(run.relative, None)
        self._failed += 1
        self.note(f"{run}: failed: {why}")

    def _draw(self) -> RenderableType:
        table = Table(box=None, pad_edge=False)
        for column in ("arm", "seed", "state"):
            table.add_column(column)
        for column in ("step", "reward", "accuracy"):
            table.add_column(column, justify="right")
        for run, progress in self._open.values():
            table.add_row(
                run.arm.name,
                str(run.seed),
                "training" if progress.step else "starting",
                f"{progress.step}/{progress.steps}",
                _number(progress.reward),
                _number(progress.accuracy),
            )
        return Group(Text(self._counts()), table)

    def _counts(self) -> str:
        counts = f"{self._finished} of {self._total} runs finished, {len(self._open)} open"
        if self._failed:
            counts += f", {self._failed} failed"
        return counts


def _line(progress: RunProgress) -> str:
    """Write how far a run is in one line; a dash stands for what is not known."""
    return (
        f"step {progress.step}/{progress.steps}  reward {_number(progress.reward)}"
        f"  accuracy {_number(progress.accuracy)}"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
