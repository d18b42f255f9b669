"""Define the commands of the room `report`. Heavy imports live inside them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from arl.report.quantities import Axis, Budget


def report(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs or sweeps, or above.", metavar="RUN...")],
    out: Annotated[Path | None, typer.Option(help="Also write NAME.html and its files.", metavar="NAME")] = None,
    at_steps: Annotated[str, typer.Option(help="Compare at these steps, as in 20,50. [20,30]")] = "",
    at_tokens: Annotated[str, typer.Option(help="Compare at so many trained tokens, as in 1e6,2e6.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON instead of tables.")] = False,
) -> None:
    """Compare runs: what they learned, how fast, how stale."""
    from rich.console import Console

    from arl.report.assemble import build_report, numbers_of
    from arl.report.output import print_report, write_report

    built = build_report(runs, [*_budgets(at_steps, "steps"), *_budgets(at_tokens, "tokens")])
    if out is not None:
        typer.echo(f"wrote {write_report(built, out)}", err=True)
    if json:
        typer.echo(numbers_of(built))
    else:
        print_report(built, Console(highlight=False))


def _budgets(text: str, axis: "Axis") -> "list[Budget]":
    """Read `20,50`."""
    from arl.errors import InputError
    from arl.report.quantities import Budget

    try:
        places = [float(part) for part in text.split(",") if text]
    except ValueError as error:
        raise InputError(f"--at-{axis} {text}: {error}; write it as --at-{axis} 20,50") from error
    return [Budget(axis, place) for place in places]
