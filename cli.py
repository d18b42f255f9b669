"""Define the `arl` command. Heavy imports live inside commands, so that --help answers at once.

Exit codes: 0 done · 1 a bug, or nobody reads the output any more, as in `arl report RUN | head -1` · 2 bad input,
nothing was started · 3 a run failed · 130 interrupted or stopped, by Ctrl-C or by SIGTERM: see arl.run.failures.
"""

import atexit
import contextlib
import errno
import functools
import io
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from arl.bench.commands import COMMANDS
from arl.config.command_options import Model, Overrides, RecipePath, not_empty
from arl.outputs import make_lasting, open_standard_files
from arl.report.commands import report
from arl.run import commands as options
from arl.sweep.commands import sweep
from arl.watch.commands import logs, top

P = ParamSpec("P")

# Commands that go on if these outputs cannot be written. What `arl eval` prints in the end is its result.
LASTING = dict.fromkeys(("train", "replay", "sweep", "join", "sft"), ("stdout", "stderr")) | {"eval_": ("stderr",)}

app = typer.Typer(
    name="arl",
    help="Fully asynchronous reinforcement learning for reasoning language models.",
    epilog="Exit codes: 0 done, 1 a bug, 2 bad input, 3 a run failed, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # rich takes longer to import than all the rest
    pretty_exceptions_enable=False,
)


def command(group: typer.Typer) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Register a function as a command whose failures are one message and an exit code, never a traceback."""

    def register(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def reported(*args: P.args, **kwargs: P.kwargs) -> None:
            from arl.errors import ArlError

            signal.signal(signal.SIGTERM, _end_as_by_ctrl_c)
            if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # else nohup has asked to leave it alone
                signal.signal(signal.SIGHUP, _end_as_by_ctrl_c)
            make_lasting(*LASTING.get(function.__name__, ()))
            try:
                function(*args, **kwargs)
            except ArlError as error:
                with contextlib.suppress(OSError):
                    sys.stdout.flush()  # in a file, what libraries have printed must not follow the message
                _show_failure(str(error), error)
                raise typer.Exit(error.exit_code) from error
            except KeyboardInterrupt as error:
                _show_failure("interrupted; everything it had started has ended", error)
                raise typer.Exit(130) from error

        return group.command(function.__name__.rstrip("_"))(reported)

    return register


def _show_failure(message: str, error: BaseException) -> None:
    """Show why a command failed, and the notes on what failed after it. Where nobody can be shown, the code says it."""
    notes: list[str] = getattr(error, "__notes__", [])
    with contextlib.suppress(OSError):
        typer.echo("\n".join([f"arl: {message}", *notes]), err=True)


def _end_as_by_ctrl_c(number: int, _: object) -> None:
    """Interrupt this process, also one that a script has started in the background, where SIGINT is ignored."""
    if number == signal.SIGHUP:  # the kernel and the shell send one each when a terminal is closed
        signal.signal(number, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


@command(app)
def train(
    recipe: RecipePath,
    set_: Overrides = None,
    dry_run: options.DryRun = False,
    gpus: options.Gpus = None,
    verbose: options.Verbose = False,
    resume: options.Resume = False,
    launcher: options.LauncherName = None,
    nodes: options.Nodes = None,
    sbatch: options.Sbatch = None,
) -> None:
    """Train a policy with asynchronous RL."""
    from arl.config.recipe_file import dump_recipe, load_recipe
    from arl.metrics.console import ConsoleDisplay
    from arl.metrics.summary import render
    from arl.report.speed import advice_on_run
    from arl.run import submit
    from arl.run.machines import named_nodes, resolve_auto
    from arl.run.plan_text import render_plan
    from arl.run.preflight import preflight
    from arl.run.train import train as run

    if resume:
        recipe = submit.follow_submission(recipe)
    overrides = [*(set_ or ()), *submit.cluster_overrides(launcher, nodes, sbatch or ())]
    loaded = load_recipe(recipe, overrides)
    submit.refuse_flags(loaded, sbatch or ())
    options.refuse_contradictions(dry_run, resume, verbose, gpus)
    named = None if gpus is None else named_nodes(gpus, loaded.cluster.nodes)
    if submit.is_submitted(loaded):
        going_on = recipe if resume else None
        text = submit.plan_submission(loaded, named) if dry_run else submit.submit_run(loaded, going_on, overrides)
        typer.echo(text)
        return
    if dry_run:
        loaded = resolve_auto(loaded, named)
        typer.echo(render_plan(loaded, preflight(loaded, named)), nl=False)
        if verbose:
            typer.echo(f"\n{dump_recipe(loaded)}", nl=False)
        return
    with ConsoleDisplay() as display:
        summary = run(loaded, display, recipe if resume else None)
        display.note(render(summary, loaded, advice_on_run(Path(summary.directory))))


@command(app)
def replay(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.", metavar="RUN")], set_: Overrides = None
) -> None:
    """Train again from what a run recorded, under other settings."""
    from arl.metrics.console import ConsoleDisplay
    from arl.metrics.summary import render
    from arl.report.speed import advice_on_run
    from arl.run.replay.replay_world import replay as train_again

    with ConsoleDisplay() as display:
        summary, recipe = train_again(run, set_ or (), display)
        display.note(render(summary, recipe, advice_on_run(Path(summary.directory))))


@command(app)
def samples(
    run: Annotated[Path, typer.Argument(help="Directory of a run, living, finished or killed.", metavar="RUN")],
    step: Annotated[int | None, typer.Option(help="As in metrics.jsonl. [the newest in a complete file]")] = None,
    count: Annotated[int, typer.Option(min=1, help="Episodes to show.")] = 4,
    right: Annotated[bool, typer.Option("--right", help="Only those that are right.")] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only those that are wrong.")] = False,
    truncated: Annotated[bool, typer.Option("--truncated", help="Only those that their budget ended.")] = False,
    problem: Annotated[str | None, typer.Option(help="Only those of this problem_id, lost ones too.")] = None,
) -> None:
    """Show what the policy wrote in episodes of a run."""
    from rich.console import Console

    from arl.errors import InputError
    from arl.metrics.sampled_episode import draw
    from arl.run.samples import Outcome, Wanted, read_samples

    outcomes: dict[Outcome, bool] = {"right": right, "wrong": wrong, "truncated": truncated}
    chosen = [outcome for outcome, is_chosen in outcomes.items() if is_chosen]
    if len(chosen) > 1:
        raise InputError("--right, --wrong and --truncated: give one of them at most")
    shown, coverage = read_samples(run, Wanted(count, step, problem, *chosen))
    console = Console(highlight=False)
    for sample in shown:
        console.print(draw(sample))
    console.print(coverage, markup=False, soft_wrap=True)


@command(app)
def doctor(
    recipe: Annotated[Path | None, typer.Argument(help="Also check whether it can start.", metavar="RECIPE")] = None,
    set_: Overrides = None,
    python: Annotated[str | None, typer.Option(help="Look for SGLang in it.", callback=not_empty)] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Train with each engine, dtype and transport.")] = False,
) -> None:
    """Check this machine and its environments.

    Exit code 2 if something is missing.
    """
    from arl.config.recipe_file import load_recipe
    from arl.errors import InputError
    from arl.run.doctor import examine

    if set_ and recipe is None:
        raise InputError(f"--set {set_[0]}: changes a field of a recipe; give RECIPE as well")
    loaded = load_recipe(recipe, set_ or ()) if recipe else None
    if smoke:
        from arl.run.smoke import smoke_test

        if not smoke_test(None if loaded is None else loaded.engine, python, typer.echo):
            raise typer.Exit(1)
        return
    code = 0
    for finding in examine(loaded, python):
        typer.echo(str(finding))
        code = code if finding.good else 2
    raise typer.Exit(code)


@command(app)
def sft(
    model: Model,
    data: Annotated[Path, typer.Argument(help="jsonl of prompt and response, or of messages.", metavar="DATA")],
    output: Annotated[Path, typer.Argument(help="Directory to write; must not exist.", metavar="OUTPUT")],
    steps: Annotated[int, typer.Option(help="Optimizer steps.")],
    batch_size: Annotated[int, typer.Option(help="Pairs per optimizer step.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Peak; ramped up, then linear to 10 %.")] = 1e-5,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, or auto: bfloat16 on a GPU.")] = "auto",
    seed: Annotated[int, typer.Option(help="Of the order of the pairs.")] = 0,
    threads: Annotated[int | None, typer.Option(help="CPU threads. [1 for a small model, else all cores]")] = None,
    save_every: Annotated[int, typer.Option(help="Steps between saves; Ctrl-C saves too.")] = 500,
) -> None:
    """Fine-tune a causal LM on prompt/response pairs.

    MODEL tiny makes a new model of 0.4M parameters, whose tokens are the characters of DATA.
    """
    from arl.train.sft import tune

    numbers = {"steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "seed": seed}
    where = {"model": model, "data": str(data), "output": str(output)}
    tune({"dtype": dtype, "threads": threads, "save_every": save_every, **where, **numbers})


@command(app)
def serve(
    model: Model,
    host: Annotated[str | None, typer.Option(help="[loopback] Beyond it, the key must be in ARL_RUN_KEY.")] = None,
    port: Annotated[int, typer.Option(help="0: any free one.", min=0, max=65535)] = 30000,
    slots: Annotated[int, typer.Option(help="Requests decoded together.", min=1)] = 32,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, or auto: bfloat16 on a GPU.")] = "auto",
) -> None:
    """Serve a model with the embedded engine.

    It speaks SGLang's HTTP protocol, to those who show its key: the one in ARL_RUN_KEY, or a new one, which it prints.
    """
    from arl.engine.embedded.server import main as serve_embedded

    arguments = ["--model", model, "--port", str(port), "--slots", str(slots), "--dtype", dtype]
    if host is not None:
        arguments += ["--host", host]
    serve_embedded(arguments)


others: tuple[Callable[..., None], ...] = (options.tasks, *options.MODEL_COMMANDS, sweep, report, top, logs)
for function in others:
    command(app)(function)
for name, about, functions in (
    ("engines", "Change the engines of a run that goes on.", options.ENGINES_COMMANDS),
    ("bench", "Measure, and print JSON.", COMMANDS),
):
    group = typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name=name)
    for function in functions:
        command(group)(function)


def main() -> None:
    """Run the command line, and leave the process with its exit code."""
    from arl.errors import ArlError

    code = 1  # of an exception that no command handles
    open_standard_files()
    if isinstance(sys.stdout, io.TextIOWrapper):
        with contextlib.suppress(OSError):
            sys.stdout.reconfigure(errors="backslashreplace")  # a name of a file may be no UTF-8

    def end() -> None:
        from arl.launch.child import exit_immediately

        exit_immediately(code)

    atexit.register(end)  # first, and so called last
    at_home = re.compile(r"(^|^--[\w-]+=)~(?=/|$)")  # of `--option=~/value` no shell makes anything else
    sys.argv[1:] = [at_home.sub(lambda found: found[1] + os.path.expanduser("~"), word) for word in sys.argv[1:]]
    try:
        app()
    except ArlError as error:  # of an argument that is looked up before its command begins
        _show_failure(str(error), error)
        code = error.exit_code
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _show_failure(f"the output cannot be written: {error}", error)
        code = 3
    except SystemExit as ended:
        code = int(ended.code or 0)
    try:
        sys.stdout.flush()
    except OSError:  # nobody reads it any more
        code = code or 3
    sys.exit(code)


if __name__ == "__main__":
    main()
