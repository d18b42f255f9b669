"""Show progress to a person: a live bar below the run's status in a terminal, else one plain line per event."""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from arl.metrics.names import Record, number
from arl.metrics.run_status import RunStatus, draw_status, rows_that_fit

REFRESHES_PER_SECOND = 2  # enough for a person; drawing takes time of the controller


class _Dashboard(Progress):
    """Draw a bar, and what is set above it."""

    top: RenderableType | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.top is not None:
            yield self.top
        yield self.make_tasks_table(self.tasks)


class ConsoleDisplay:
    """Show one stage at a time: `begin` a stage, `advance` it, and `note` lines above it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._progress = _Dashboard(
            TextColumn("{task.description}"),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}"),
            console=self._console,
            transient=True,
            refresh_per_second=REFRESHES_PER_SECOND,
            disable=not self._console.is_terminal,
        )
        self._stage = self._progress.add_task("", total=None, detail="", visible=False)

    @property
    def is_live(self) -> bool:
        """Return whether there is a terminal to draw a bar in."""
        return self._console.is_terminal

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, name: str, total: int) -> None:
        """Start a stage of `total` parts."""
        self._progress.reset(self._stage, description=name, total=total, visible=True, detail="")

    def advance(self, completed: int, detail: str) -> None:
        """Show how far the stage is."""
        self._progress.update(self._stage, completed=completed, detail=detail)
        if not self._console.is_terminal:
            self.note(detail)

    def show_status(self, status: RunStatus) -> None:
        """Draw the status of the run above the bar. Anywhere but in a terminal it is not shown."""
        if self.is_live:
            self._progress.top = draw_status(status, max_processes=rows_that_fit(self._console.height))

    def note(self, text: str) -> None:
        """Print one line. Threads may call it too. One that cannot be written ends no command: see arl.outputs."""
        if self._progress.live.is_started and not self.is_live:  # the terminal is gone, and a log takes its place
            self._progress.stop()
        self._console.print(text, markup=False, soft_wrap=True)

    def lost(self, text: str) -> None:
        """Print one line about a group that is not trained."""
        self.note(text)

    def step(self, record: Record) -> None:
        """Show a finished training step."""
        self.advance(int(number(record, "step")), step_line(record))


def stderr_display() -> ConsoleDisplay:
    """Make a display that writes to stderr, for a command whose result goes to stdout."""
    return ConsoleDisplay(Console(stderr=True, highlight=False))


def step_line(record: Record) -> str:
    """Write one training step in one line; a dash stands for what this step has no value of."""

    def show(name: str, form: str) -> str:
        return format(number(record, name), form) if name in record else "–"

    return (
        f"step {show('step', '4.0f')}  reward {show('reward/trained_mean', '5.3f')}"
        f"  length {show('length/mean', '6.1f')}"
        f"  staleness {show('staleness/mean', '4.2f')} (max {show('staleness/max', '.0f')})"
        f"  {show('throughput/trained_tokens_per_s', '7.0f')} tok/s"
        f"  idle: trainer {show('idle/trainer', '4.0%')} engine {show('idle/engine', '4.0%')}"
    )
