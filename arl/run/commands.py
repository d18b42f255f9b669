"""Define the options of `arl train`, and the commands `arl eval`, `arl scores`, `arl tasks` and `arl engines`.

Heavy imports live inside functions, so that --help answers at once.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from arl.config.command_options import Model, Overrides, not_empty

WIDTH = 18  # of the column of names in `arl tasks`


def run_of(directory: Path) -> Path:
    """Return the directory of a run; that of a job that Slurm has begun stands for it."""
    from arl.launch.slurm import job

    return job.run_of(directory)


# ---- arl train

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


# ---- arl eval, arl scores


def eval_(
    model: Model,
    suite: Annotated[str, typer.Option(help="Tasks, as in gsm8k,math500; held_out: of the recipe.")] = "",
    samples: Annotated[int | None, typer.Option(min=1, help="Of each problem. [1]")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0: greedy. [1]")] = None,
    top_p: Annotated[float | None, typer.Option(help="[1]")] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="[all]")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Of an answer.")] = None,
    problems: Annotated[int | None, typer.Option(min=1, help="The first so many. [all]")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of sampling. [0]")] = None,
    recipe: Annotated[Path | None, typer.Option(help="Takes engine, options and held_out from it.")] = None,
    set_: Overrides = None,
    output: Annotated[Path | None, typer.Option(help="Directory. [evals/MODEL/SUITE-PROTOCOL]")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print scores.json instead of a table.")] = False,
) -> None:
    """Score a model on suites of problems; resumable."""
    import msgspec
    from rich.console import Console

    from arl.metrics.console import stderr_display
    from arl.run.evaluation.evaluate_model import Request, evaluate_model
    from arl.run.evaluation.results import print_scores

    sampling = {
        "samples": samples,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "max_new_tokens": max_new_tokens,
        "problems": problems,
    }
    request = Request(
        model=model,
        suites=[name.strip() for name in suite.split(",") if name.strip()],
        recipe=recipe,
        overrides=[*(set_ or ()), *([] if seed is None else [f"seed={seed}"])],
        sampling={field: value for field, value in sampling.items() if value is not None},
        output=output,
    )
    with stderr_display() as display:
        scores = evaluate_model(request, display)
    if json:
        typer.echo(msgspec.json.format(msgspec.json.encode(scores)).decode())
    else:
        print_scores(scores, Console(highlight=False))


def scores(
    directories: Annotated[list[Path], typer.Argument(help="What `arl eval` wrote, or above.", metavar="DIR...")],
) -> None:
    """Compare scores of `arl eval`: a table for each protocol."""
    from rich.console import Console

    from arl.run.evaluation.results import find_scores, print_scores

    print_scores(find_scores(directories), Console(highlight=False))


EVALUATION_COMMANDS: tuple[Callable[..., None], ...] = (eval_, scores)


# ---- arl tasks


def tasks() -> None:
    """List the tasks that come with arl, and where their problems are."""
    from arl.config.data_section import TASKS
    from arl.tasks.base import Split
    from arl.tasks.registry import task_class

    sides: tuple[Split, ...] = ("training", "evaluation")
    for name in sorted(TASKS):
        kind = task_class(name)
        about = (kind.__doc__ or "").strip().partition("\n")[0]
        typer.echo(f"{name:{WIDTH}}{about}")
        for side in sides:
            source = kind.split_source(side)
            where = "none: for evaluation alone"
            if source is not None:
                licence = f"  ({source.licence})" if source.licence else ""
                where = f"{source.problems:>6,}  {source.where}{licence}"
            typer.echo(f"{'':{WIDTH}}{side:12}{where}")


# ---- arl engines

Run = Annotated[Path, typer.Argument(help="Directory of a run that goes on.", metavar="RUN", callback=run_of)]
Replicas = Annotated[int, typer.Option(min=1, help="Engines.")]
Host = Annotated[
    str | None, typer.Option(help="Address of this machine, to listen on. Default: that of cluster.interface.")
]
Engine = Annotated[str, typer.Argument(help="As `arl engines list` names it.", metavar="ENGINE")]


def list_(run: Run) -> None:
    """List the engines of a run."""
    from datetime import timedelta

    from rich.console import Console
    from rich.table import Table

    from arl import clock
    from arl.run.control import RunControl

    table = Table(box=None, pad_edge=False)
    for heading in ("engine", "node", "pid", "state", "version", "open", "since"):
        table.add_column(heading, justify="left" if heading in ("engine", "node", "state") else "right")
    for engine in clock.run(RunControl(run).describe).engines:
        row = [engine.name, engine.node, "" if engine.pid is None else str(engine.pid), engine.state]
        if engine.version is not None:
            row += [str(engine.version), str(engine.open), str(timedelta(seconds=round(engine.seconds)))]
        table.add_row(*row)
    Console(highlight=False).print(table)


def join(run: Run, replicas: Replicas = 1, host: Host = None) -> None:
    """Serve a run with engines of this machine, until it ends.

    Ctrl-C takes them out of the run.
    """
    from arl import clock
    from arl.run.join import join_run

    clock.run(lambda: join_run(run, replicas, host, typer.echo))


def remove(run: Run, engine: Engine) -> None:
    """Take an engine out of a run.

    Its open requests go on elsewhere, and keep their tokens.
    """
    from arl import clock
    from arl.config.recipe_file import load_recipe
    from arl.metrics.run_files import RECIPE
    from arl.run.control import RemoveEngine, RunControl

    async def ask() -> str:
        control = RunControl(run)
        await control.describe()
        deadlines = load_recipe(run / RECIPE, ()).deadlines
        return await control.ask(RemoveEngine(engine), deadlines.engine_removed)

    typer.echo(clock.run(ask))


ENGINES_COMMANDS: tuple[Callable[..., None], ...] = (list_, join, remove)
