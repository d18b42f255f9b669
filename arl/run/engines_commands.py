"""Define `arl engines`. Heavy imports live inside the commands."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Argument(help="Directory of a run that goes on.", metavar="RUN")]
Replicas = Annotated[int, typer.Option(min=1, help="Engines.")]


def list_(run: Run) -> None:
    """List the engines of a run."""
    from rich.console import Console

    from arl import clock
    from arl.run.control.control_client import RunControl
    from arl.run.control.engine_table import engine_table

    state = clock.run(RunControl(run).state)
    Console(highlight=False).print(engine_table(state.engines))


def add(run: Run, replicas: Replicas = 1) -> None:
    """Start more engines by the run's own launcher."""
    from arl import clock
    from arl.config.recipe_file import load_recipe
    from arl.metrics.run_files import RECIPE
    from arl.run.control.control_client import RunControl
    from arl.run.control.control_messages import AddEngine

    control = RunControl(run)

    async def ask() -> None:
        await control.state()
        deadlines = load_recipe(run / RECIPE, ()).deadlines
        for _ in range(replicas):
            added = await control.ask(AddEngine(), deadlines.swap_and_restart)
            typer.echo(f"{added} serves")

    clock.run(ask)


def join(
    run: Run,
    replicas: Replicas = 1,
    host: Annotated[str | None, typer.Option(help="Address of this machine, to listen on.")] = None,
    interface: Annotated[str | None, typer.Option(help="Network interface of that address.")] = None,
) -> None:
    """Serve a run with engines of this machine, until it ends.

    Ctrl-C takes them out of the run.
    """
    from arl import clock
    from arl.run.control.join_run import JoinOptions, join_run

    options = JoinOptions(run, replicas, host, interface)
    clock.run(lambda: join_run(options, typer.echo))


def remove(
    run: Run, engine: Annotated[str, typer.Argument(help="As `arl engines list` names it.", metavar="ENGINE")]
) -> None:
    """Take an engine out of a run.

    Its open requests go on elsewhere, and keep their tokens.
    """
    from arl import clock
    from arl.config.recipe_file import load_recipe
    from arl.metrics.run_files import RECIPE
    from arl.run.control.control_client import RunControl
    from arl.run.control.control_messages import RemoveEngine

    control = RunControl(run)

    async def ask() -> str:
        await control.state()
        deadlines = load_recipe(run / RECIPE, ()).deadlines
        return await control.ask(RemoveEngine(engine), deadlines.swap + deadlines.shutdown + deadlines.swap)

    typer.echo(clock.run(ask))


COMMANDS: tuple[Callable[..., None], ...] = (list_, add, join, remove)
