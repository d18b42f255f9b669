"""Define `arl sweep`. Heavy imports live inside the command."""

from pathlib import Path
from typing import Annotated

import typer

Fields = list[str] | None


def sweep(
    recipe: Annotated[Path, typer.Argument(help="Give a recipe, or a sweep file: docs/sweeps.md.", metavar="RECIPE")],
    axis: Annotated[Fields, typer.Option(help="Vary a field, as in rollout.staleness=0,4.", metavar="A.B=X,Y")] = None,
    paired: Annotated[Fields, typer.Option(help="Change such fields together.", metavar="A.B=X,Y")] = None,
    seeds: Annotated[str | None, typer.Option(help="Give a number of seeds, or a list: 0,3,5.")] = None,
    set_: Annotated[Fields, typer.Option("--set", help="Set a field in every arm.", metavar="A.B=X")] = None,
    name: Annotated[str | None, typer.Option(help="Name the directory. [RECIPE-sweep, or the sweep file's]")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Run so many at a time. [1; virtual: one a core]")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the arms, start nothing.")] = False,
) -> None:
    """Train every combination of settings; resumable."""
    from rich.console import Console

    from arl.sweep import run_sweep
    from arl.sweep.request import read_request

    request = read_request(
        recipe, name=name, overrides=set_ or (), axes=axis or (), paired=paired or (), seeds=seeds, jobs=jobs
    )
    run = run_sweep.dry_run if dry_run else run_sweep.run_sweep
    run(request, Console(highlight=False))
