"""Define the options of `arl train`. It imports next to nothing, so that --help answers at once."""

from typing import Annotated

import typer

Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Go on from the last checkpoint of the newest such run; RECIPE may be RUN/recipe.yaml."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, print the plan, start nothing.")]
Gpus = Annotated[
    str | None, typer.Option(help="With --dry-run, plan for these instead of this machine: 8xH100, 8x80GB.")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="With --dry-run, also print the full recipe.")]
CheckWeights = Annotated[
    bool, typer.Option("--check-weights", help="Compare every weight after each swap: --set sync.check=true.")
]
LauncherName = Annotated[
    str | None, typer.Option("--launcher", help="local, slurm, ray, or module:attribute: --set launcher=….")
]
Nodes = Annotated[str | None, typer.Option("--nodes", help="Machines, N or MIN-MAX: --set cluster.nodes=….")]
Time = Annotated[str | None, typer.Option("--time", help="Slurm: limit of the job, as in 08:00:00.")]
Account = Annotated[str | None, typer.Option("--account", help="Slurm: who is charged.")]
Partition = Annotated[str | None, typer.Option("--partition", help="Slurm: the queue.")]
Sbatch = Annotated[
    list[str] | None, typer.Option("--sbatch", help="Slurm: any flag of sbatch, as in --sbatch=--qos=high. Repeatable.")
]
RayAddress = Annotated[
    str | None, typer.Option("--address", help="Of the Ray cluster, or auto: --set cluster.address=….")
]
