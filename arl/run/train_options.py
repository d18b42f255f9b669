"""Define the options of `arl train`. It imports next to nothing, so that --help answers at once."""

from typing import Annotated

import typer

from arl.config.command_options import not_empty

Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Go on from the last checkpoint of the newest such run; RECIPE may be RUN/recipe.yaml."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, print the plan, start nothing.")]
Gpus = Annotated[
    str | None,
    typer.Option(help="With --dry-run, plan for these instead of this machine: 8xH100, 8x80GB.", callback=not_empty),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="With --dry-run, also print the full recipe.")]
CheckWeights = Annotated[
    bool, typer.Option("--check-weights", help="Compare every weight after each swap: --set sync.check=true.")
]
# Options that --help names with another one are hidden, so that it fits one screen.
LauncherName = Annotated[
    str | None,
    typer.Option("--launcher", help="local, slurm, ray (--address) or module:attribute.", callback=not_empty),
]
Nodes = Annotated[
    str | None,
    typer.Option("--nodes", help="Machines, N or MIN-MAX: --set cluster.nodes=….", callback=not_empty),
]
Time = Annotated[str | None, typer.Option("--time", hidden=True, callback=not_empty)]
Account = Annotated[str | None, typer.Option("--account", hidden=True, callback=not_empty)]
Partition = Annotated[str | None, typer.Option("--partition", hidden=True, callback=not_empty)]
Sbatch = Annotated[
    list[str] | None,
    typer.Option("--sbatch", help="Slurm: --sbatch=--qos=x; also --time, --account, --partition."),
]
RayAddress = Annotated[str | None, typer.Option("--address", hidden=True, callback=not_empty)]


def refuse_contradictions(dry_run: bool, resume: bool, verbose: bool, gpus: str | None) -> None:
    """Check that options that are for a dry run, or not, are given with one, or without.

    Raises:
        InputError: they are not.
    """
    from arl.errors import InputError

    if dry_run and resume:
        raise InputError("--dry-run starts nothing and --resume goes on: give one of the two")
    if verbose and not dry_run:
        raise InputError("--verbose prints the recipe of a --dry-run: give both")
    if gpus is not None and not dry_run:
        raise InputError(f"--gpus {gpus}: names a machine to plan for, and a run takes what is there; add --dry-run")
