"""Define `arl engines`. Heavy imports live inside the commands."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from arl.launch.slurm.job import run_of

Run = Annotated[Path, typer.Argument(help="Directory of a run that goes on.", metavar="RUN", callback=run_of)]
Replicas = Annotated[int, typer.Option(min=1, help="Engines.")]
Host = Annotated[str | None, typer.Option(help="Address of this machine, to listen on.")]
Interface = Annotated[str | None, typer.Option(help="Network interface of that address.")]
Engine = Annotated[str, typer.Argument(help="As `arl engines list` names it.", metavar="ENGINE")]


def list_(run: Run) -> None:
    """List the engines of a run."""
    from datetime import timedelta

    from rich.console import Console
    from rich.table import Table

    from arl import clock
    from arl.run.control.run_control import RunControl

    table = Table(box=None, pad_edge=False)
    for heading in ("engine", "node", "pid", "state", "version", "open", "since"):
        table.add_column(heading, justify="left" if heading in ("engine", "node", "state") else "right")
    for engine in clock.run(RunControl(run).describe).engines:
        row = [engine.name, engine.node, "" if engine.pid is None else str(engine.pid), engine.state]
        if engine.version is not None:
            row += [str(engine.version), str(engine.open), str(timedelta(seconds=round(engine.seconds)))]
        table.add_row(*row)
    Console(highlight=False).print(table)


def join(run: Run, replicas: Replicas = 1, host: Host = None, interface: Interface = None) -> None:
    """Serve a run with engines of this machine, until it ends.

    Ctrl-C takes them out of the run.
    """
    from arl import clock
    from arl.run.control.join_run import JoinOptions, join_run

    options = JoinOptions(run, replicas, host, interface)
    clock.run(lambda: join_run(options, typer.echo))


def remove(run: Run, engine: Engine) -> None:
    """Take an engine out of a run.

    Its open requests go on elsewhere, and keep their tokens.
    """
    from arl import clock
    from arl.config.recipe_file import load_recipe
    from arl.metrics.run_files import RECIPE
    from arl.run.control.control_messages import RemoveEngine
    from arl.run.control.run_control import RunControl

    async def ask() -> str:
        control = RunControl(run)
        await control.describe()
        deadlines = load_recipe(run / RECIPE, ()).deadlines
        return await control.ask(RemoveEngine(engine), deadlines.engine_removed)

    typer.echo(clock.run(ask))


COMMANDS: tuple[Callable[..., None], ...] = (list_, join, remove)
