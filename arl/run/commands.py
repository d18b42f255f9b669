"""Define the options of `arl train`, and `arl eval`, `arl scores`, `arl export`, `arl tasks`, `arl engines`.

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
    typer.Option("--launcher", help="local, slurm, ray or module:attribute.", callback=not_empty),
]
Nodes = Annotated[
    str | None,
    typer.Option("--nodes", help="Machines, N or MIN-MAX: --set cluster.nodes=….", callback=not_empty),
]
Sbatch = Annotated[list[str] | None, typer.Option("--sbatch", help="Flag of sbatch, as in --sbatch=--time=08:00:00.")]


def refuse_contradictions(dry_run: bool, resume: bool, verbose: bool, gpus: str | None) -> None:
    """Check that options that are for a dry run, or not, are given with one, or without.

    Raises:
        InputError: they are not.
    """
    from arl.errors import InputError

    if dry_run and resume:
        raise InputError("--dry-run starts nothing and --resume goes on: give one of the two")
    for option, is_given in (("--verbose", verbose), (f"--gpus {gpus}", gpus is not None)):
        if is_given and not dry_run:
            raise InputError(f"{option}: is for a plan, and a run takes the machine that is there; add --dry-run")


# ---- arl eval, arl scores, arl export


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
    logs: Annotated[Path | None, typer.Option(help="Directory of logs. [a temporary one]")] = None,
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
    overrides = list(set_ or ())
    if seed is not None:
        overrides.append(f"seed={seed}")
    request = Request(
        model=model,
        suites=[name.strip() for name in suite.split(",") if name.strip()],
        recipe=recipe,
        overrides=overrides,
        sampling={field: value for field, value in sampling.items() if value is not None},
        output=output,
        logs=logs,
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


def export(
    source: Annotated[Path, typer.Argument(help="A run, or one of its checkpoints.", metavar="RUN", callback=run_of)],
    step: Annotated[str | None, typer.Option(help="Number of the checkpoint, or best. [the newest]")] = None,
    dtype: Annotated[str | None, typer.Option(help="As in bfloat16. [that of model.path]")] = None,
    output: Annotated[Path | None, typer.Option(help="Directory. [beside the checkpoint, step_N-DTYPE]")] = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="Only the LoRA adapters, in PEFT's format.")] = False,
) -> None:
    """Write a checkpoint as a model to hand on.

    Checkpoints are float32, and have what resumes a run.
    """
    from arl.models.export import export_model
    from arl.run.checkpoint import find_model

    checkpoint = find_model(source, step)
    if adapter:
        from arl.models.lora import export_adapter

        written = output or checkpoint.with_name(f"{checkpoint.name}-adapter")
        export_adapter(checkpoint, written)
        typer.echo(f"{written}: give it to PeftModel.from_pretrained, or to a server")
        return
    written, written_dtype = export_model(checkpoint, output, dtype)
    size = sum(file.stat().st_size for file in written.rglob("*") if file.is_file())
    typer.echo(
        f"{written}: {size / 1e9:.3g} GB, {written_dtype}; give it to from_pretrained of transformers, or to a server"
    )


MODEL_COMMANDS: tuple[Callable[..., None], ...] = (eval_, scores, export)


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
    from msgspec import structs
    from rich.console import Console

    from arl import clock
    from arl.metrics.run_status import draw_processes
    from arl.run.control import RunControl

    engines = clock.run(RunControl(run).describe).engines
    rows = [structs.replace(engine, state=engine.state or "serving") for engine in engines]
    Console(highlight=False, width=200).print(draw_processes(rows, len(rows)))  # names of engines may be long


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
        seconds = load_recipe(run / RECIPE).deadlines.engine_removed
        return (await control.ask(RemoveEngine(engine), seconds)).done

    typer.echo(clock.run(ask))


ENGINES_COMMANDS: tuple[Callable[..., None], ...] = (list_, join, remove)
