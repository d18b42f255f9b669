"""What a person sees: a live bar in a terminal, one plain line per event anywhere else."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from arl.metrics.names import Record, number


class ConsoleDisplay:
    """Progress of one stage at a time: `begin` a stage, `advance` it, `note` whatever matters above it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        columns = TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn()
        self._progress = Progress(
            *columns,
            TextColumn("{task.fields[detail]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._stage = self._progress.add_task("", total=None, detail="", visible=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, name: str, total: int) -> None:
        self._progress.reset(self._stage, description=name, total=total, visible=True, detail="")

    def advance(self, completed: int, detail: str) -> None:
        self._progress.update(self._stage, completed=completed, detail=detail)
        if not self._console.is_terminal:
            self.note(detail)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def step(self, record: Record) -> None:
        self.advance(int(number(record, "step")), step_line(record))


def step_line(r: Record) -> str:
    """One training step in one line."""
    return (
        f"step {r['step']:4.0f}  reward {r['reward/mean']:5.3f}  length {r['length/mean']:6.1f}"
        f"  staleness {r['staleness/mean']:4.2f} (max {r['staleness/max']:.0f})"
        f"  {r['throughput/trained_tokens_per_s']:7.0f} tok/s"
        f"  idle: trainer {r['idle/trainer']:4.0%} engine {r['idle/engine']:4.0%}"
    )
