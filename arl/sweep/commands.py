"""Define `arl sweep`. Heavy imports live inside the command."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from arl.config.command_options import not_empty


def sweep(
    recipe: Annotated[Path, typer.Argument(help="Give a recipe, or a sweep file: docs/sweeps.md.", metavar="RECIPE")],
    axis: Annotated[
        list[str] | None,
        typer.Option(help="Vary a field, as in rollout.staleness=0,4. Repeatable.", metavar="A.B=X,Y"),
    ] = None,
    paired: Annotated[
        list[str] | None, typer.Option(help="Change fields together. Repeatable.", metavar="A.B=X,Y")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Give a number of seeds, or a list: 0,3,5. [the recipe's seed]", callback=not_empty),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Set a field in every arm. Repeatable.", metavar="A.B=X")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name the directory. [RECIPE-sweep, or the sweep file's]")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Run so many at a time. [1; world virtual: one a core]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the arms, start nothing.")] = False,
) -> None:
    """Train every combination of settings; resumable."""
    from rich.console import Console

    from arl.sweep import run_sweep
    from arl.sweep.request import read_request

    request = read_request(
        recipe,
        name=name,
        overrides=set_ or (),
        axes=axis or (),
        paired=paired or (),
        seeds=seeds,
        jobs=jobs,
    )
    console = Console(highlight=False)
    if dry_run:
        run_sweep.dry_run(request, console)
    else:
        run_sweep.run_sweep(request, console)


COMMANDS: tuple[Callable[..., None], ...] = (sweep,)
