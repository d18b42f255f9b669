"""Show a smoke test: stages line by line as they end, then the table of logprobs and the advice."""

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from arl.run.smoke.smoke_types import LogprobRow, SmokeReport, SmokeStage, Verdict

STYLES: dict[Verdict, str] = {
    "ok": "green",
    "slow": "yellow",
    "wrong": "bold red",
    "failed": "bold red",
    "skipped": "dim",
}
VERDICT = 8  # characters
SECONDS = 7
NAME = 36
MOST_LINES = 12  # of a message; the whole one is in the JSON
MOST_CHARACTERS = 400  # of a line


class SmokeDisplay:
    """Print to `console`; on a terminal also the stage that is running."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None

    def begin(self, name: str) -> None:
        """Show that a stage runs."""
        if self._console.is_terminal:
            self._status = self._console.status(name)
            self._status.start()

    def show(self, stage: SmokeStage) -> None:
        """Print a stage that has ended."""
        self.close()
        lines = stage.said.splitlines() or [""]
        first, *more = [text[:MOST_CHARACTERS] for text in lines[:MOST_LINES]]
        line = Text()
        line.append(f"{stage.verdict:<{VERDICT}}", STYLES[stage.verdict])
        line.append(f"{stage.seconds:>{SECONDS - 2}.1f} s  {stage.name:<{NAME}}  {first}")
        self._console.print(line, soft_wrap=True)
        for text in more:
            self._console.print(Text(f"    {text}"), soft_wrap=True)

    def finish(self, report: SmokeReport) -> None:
        """Print the table, the advice and the verdict."""
        self.close()
        if self._console.is_terminal and report.logprobs:
            self._console.print(_table(report))
        for row in () if self._console.is_terminal else report.logprobs:
            self._console.print(Text(_plain(row)), soft_wrap=True)
        for text in report.advice:
            self._console.print(Text(f"advice  {text}"), soft_wrap=True)
        line = Text()
        line.append(report.verdict, STYLES[report.verdict])
        line.append(f" after {report.seconds:.0f} s, {report.recipe}; --json writes all of it, for a bug report")
        self._console.print(line, soft_wrap=True)

    def close(self) -> None:
        """Take the running stage off the terminal."""
        if self._status is not None:
            self._status.stop()
            self._status = None


def _plain(row: LogprobRow) -> str:
    """Return a row of the table as a line, for an output that is no terminal."""
    return (
        f"logprobs  {row.engine}, {row.precision}, {row.weights}: RMS {row.rms:.2g} (limit {row.limit:.2g}), "
        f"KL {row.kl:.2g}, largest {row.largest:.2g}, {row.tokens} tokens: {row.verdict}"
    )


def _table(report: SmokeReport) -> Table:
    table = Table(title="logprobs: trainer − engine, nats", title_justify="left", box=None)
    for name in ("engine", "precision", "weights"):
        table.add_column(name)
    for name in ("tokens", "RMS", "limit", "KL", "largest"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for row in report.logprobs:
        table.add_row(
            row.engine,
            row.precision,
            row.weights,
            f"{row.tokens}",
            f"{row.rms:.2g}",
            f"{row.limit:.2g}",
            f"{row.kl:.2g}",
            f"{row.largest:.2g}",
            Text(row.verdict, STYLES[row.verdict]),
        )
    return table
