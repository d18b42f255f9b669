"""Define the commands of the room `report`. Heavy imports live inside them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from arl.report.quantities import Axis, Budget


def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Directories of runs or sweeps, or above; living runs too.", metavar="RUN..."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write one HTML page that opens offline.", metavar="FILE")
    ] = None,
    at_steps: Annotated[str, typer.Option(help="Compare at these steps, as in 20,50. [20,30]")] = "",
    at_tokens: Annotated[str, typer.Option(help="Compare at so many trained tokens, as in 1e6,2e6.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON instead of tables.")] = False,
) -> None:
    """Compare runs: what they learned, how fast, how stale."""
    from rich.console import Console

    from arl.errors import InputError
    from arl.report.assemble import build_report, numbers_of
    from arl.report.output import print_report, write_page

    if not runs:
        raise InputError("give directories of runs or of a sweep, like runs/quickstart")
    if out is not None and out.is_dir():
        raise InputError(f"--out {out}: is a directory; name a file in it, like {out / 'report.html'}")
    budgets = [*_budgets("--at-steps", at_steps, "steps"), *_budgets("--at-tokens", at_tokens, "tokens")]
    built = build_report(runs, budgets)
    if json:
        typer.echo(numbers_of(built))
    else:
        print_report(built, Console(highlight=False))
    if out is not None:
        write_page(built, out)
        typer.echo(f"wrote {out}", err=True)


def _budgets(option: str, text: str, axis: "Axis") -> "list[Budget]":
    """Read `20,50`."""
    from arl.errors import InputError
    from arl.report.quantities import Budget

    budgets = []
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            at = float(part)
        except ValueError:
            at = math.nan
        if not 0 <= at < math.inf:
            raise InputError(f"{option} {text}: {part!r} is no number ≥ 0; write it as {option} 20,50")
        budgets.append(Budget(axis, at))
    return budgets


COMMANDS: tuple[Callable[..., None], ...] = (report,)
