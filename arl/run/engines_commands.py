"""Define `arl engines`. Heavy imports live inside the commands."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from arl.config.run_section import Deadlines
    from arl.run.control.control_client import RunControl


def _run_of(directory: Path) -> Path:
    from arl.launch.slurm.run_pointer import run_of

    return run_of(directory)


RUN = typer.Argument(
    help="Directory of a run that goes on.",
    metavar="RUN",
    callback=_run_of,
)
REPLICAS = typer.Option(min=1, help="Engines.")
HOST = typer.Option(help="Address of this machine, to listen on.")
INTERFACE = typer.Option(help="Network interface of that address.")
ENGINE = typer.Argument(
    help="As `arl engines list` names it.",
    metavar="ENGINE",
)

Run = Annotated[Path, RUN]
Replicas = Annotated[int, REPLICAS]
Host = Annotated[str | None, HOST]
Interface = Annotated[str | None, INTERFACE]
Engine = Annotated[str, ENGINE]


def list_(run: Run) -> None:
    """List the engines of a run."""
    from rich.console import Console

    from arl import clock
    from arl.run.control.control_client import RunControl
    from arl.run.control.engine_table import engine_table

    control = RunControl(run)
    state = clock.run(control.state)
    table = engine_table(state.engines)
    Console(highlight=False).print(table)


def join(
    run: Run,
    replicas: Replicas = 1,
    host: Host = None,
    interface: Interface = None,
) -> None:
    """Serve a run with engines of this machine, until it ends.

    Ctrl-C takes them out of the run.
    """
    from arl import clock
    from arl.run.control.join_run import JoinOptions, join_run

    options = JoinOptions(
        run=run,
        replicas=replicas,
        host=host,
        interface=interface,
    )
    clock.run(lambda: join_run(options, typer.echo))


def remove(run: Run, engine: Engine) -> None:
    """Take an engine out of a run.

    Its open requests go on elsewhere, and keep their tokens.
    """
    from arl import clock
    from arl.run.control.control_messages import RemoveEngine

    async def ask() -> str:
        control = await _reach(run)
        deadlines = _deadlines(run)
        request = RemoveEngine(engine)
        return await control.ask(request, deadlines.engine_removed)

    done = clock.run(ask)
    typer.echo(done)


async def _reach(run: Path) -> "RunControl":
    """Return how to ask the controller of a run, once it has shown that it lives."""
    from arl.run.control.control_client import RunControl

    control = RunControl(run)
    await control.state()
    return control


def _deadlines(run: Path) -> "Deadlines":
    from arl.config.recipe_file import load_recipe
    from arl.metrics.run_files import RECIPE

    recipe = load_recipe(run / RECIPE, ())
    return recipe.deadlines


COMMANDS: tuple[Callable[..., None], ...] = (
    list_,
    join,
    remove,
)
