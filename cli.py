"""The `arl` command. Heavy imports live inside commands, so that --help answers at once.

Exit codes: 0 done · 1 a bug · 2 bad input, nothing was started · 3 a run failed · 130 interrupted.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

P = ParamSpec("P")

app = typer.Typer(
    name="arl",
    help="Fully asynchronous reinforcement learning for reasoning language models.",
    epilog="Exit codes: 0 done, 1 a bug, 2 bad input, 3 a run failed, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

RecipePath = Annotated[Path, typer.Argument(help="Recipe YAML; see recipes/.", metavar="RECIPE")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a field, as in --set rollout.staleness=0. Repeatable.", metavar="A.B=X"),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, print the full recipe, start nothing.")]
Model = Annotated[str, typer.Argument(help="Directory or Hugging Face name of a causal LM.", metavar="MODEL")]


def command(function: Callable[P, None]) -> Callable[P, None]:
    """Register `function` as a command whose failures are one message and an exit code, never a traceback."""

    @functools.wraps(function)
    def reported(*args: P.args, **kwargs: P.kwargs) -> None:
        from arl.errors import ArlError

        try:
            function(*args, **kwargs)
        except ArlError as error:
            typer.echo(f"arl: {error}", err=True)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            typer.echo("arl: interrupted; everything it had started has ended", err=True)
            raise typer.Exit(130) from error

    return app.command(function.__name__.rstrip("_"))(reported)


@command
def train(recipe: RecipePath, set_: Overrides = None, dry_run: DryRun = False) -> None:
    """Train a policy with asynchronous RL."""
    from arl import clock
    from arl.metrics.console import ConsoleDisplay
    from arl.metrics.summary import render
    from arl.recipe_file import dump_recipe, load_recipe
    from arl.run import preflight
    from arl.run import train as run

    loaded = load_recipe(recipe, set_ or ())
    if dry_run:
        preflight(loaded)
        typer.echo(dump_recipe(loaded), nl=False)
        return
    with ConsoleDisplay() as display:
        summary = clock.run(lambda: run(loaded, display))
        display.note(render(summary, loaded))


if __name__ == "__main__":
    app()
