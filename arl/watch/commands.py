"""Define the commands of the room `watch`. Heavy imports live inside them."""

from pathlib import Path
from typing import Annotated

import typer

from arl.run.commands import run_of

PIPED_WIDTH = 160  # columns, where no terminal says how wide it is


Run = Annotated[Path, typer.Argument(help="Directory of a run, living or ended.", metavar="RUN", callback=run_of)]


def top(run: Run, once: Annotated[bool, typer.Option("--once", help="Print it once.")] = False) -> None:
    """Show what a run is doing: who waits, processes, queues, speed.

    Works on every host that sees the directory. Ends with the run, q or Ctrl-C.
    """
    import sys

    from rich.console import Console

    from arl.watch.top import show_live, show_once

    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)
    if once or not console.is_terminal or not sys.stdin.isatty():
        show_once(run, console)
    else:
        show_live(run, console)


def logs(
    run: Run,
    role: Annotated[str | None, typer.Argument(help="As in engine-0; or of several: engine.", metavar="ROLE")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run has ended.")] = False,
    lines: Annotated[int, typer.Option("-n", min=0, help="Last lines of each log.")] = 10,
) -> None:
    """Show the logs of a run's processes."""
    from arl.watch.run_logs import show_logs

    show_logs(run, role, lines, typer.echo, follow)
