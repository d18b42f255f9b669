"""Define the options of the command line that choose machines. It imports next to nothing, so that --help is fast."""

from typing import Annotated

import typer

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
