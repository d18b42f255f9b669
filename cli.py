"""The `arl` command. Heavy imports live inside commands, so that --help answers at once.

Exit codes: 0 done · 1 a bug · 2 bad input, nothing was started · 3 a run failed · 130 interrupted.
"""

import atexit
import functools
import signal
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
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint of the newest such run.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, print the full recipe, start nothing.")]
Model = Annotated[str, typer.Argument(help="Directory or Hugging Face name of a causal LM.", metavar="MODEL")]


def command(group: typer.Typer) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Register a function as a command whose failures are one message and an exit code, never a traceback."""

    def register(function: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(function)
        def reported(*args: P.args, **kwargs: P.kwargs) -> None:
            from arl.errors import ArlError

            signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # ends as Ctrl-C does
            try:
                function(*args, **kwargs)
            except ArlError as error:
                typer.echo(f"arl: {error}", err=True)
                raise typer.Exit(error.exit_code) from error
            except KeyboardInterrupt as error:
                typer.echo("arl: interrupted; everything it had started has ended", err=True)
                raise typer.Exit(130) from error

        return group.command(function.__name__.rstrip("_"))(reported)

    return register


def _named(option: str) -> tuple[str, str]:
    name, colon, value = option.partition(":")
    if not colon:
        raise typer.BadParameter(f"{option!r}: write it as NAME: value")
    return name, value


CheckWeights = Annotated[
    bool, typer.Option("--check-weights", help="Compare every weight after each swap: --set sync.check=true.")
]


@command(app)
def train(
    recipe: RecipePath,
    set_: Overrides = None,
    dry_run: DryRun = False,
    resume: Resume = False,
    check_weights: CheckWeights = False,
) -> None:
    """Train a policy with asynchronous RL."""
    from arl.config.recipe_file import dump_recipe, load_recipe
    from arl.errors import InputError
    from arl.metrics.console import ConsoleDisplay
    from arl.metrics.summary import render
    from arl.run.preflight import preflight
    from arl.run.train import train as run
    from arl.run.world import make_world

    loaded = load_recipe(recipe, [*(set_ or ()), *(["sync.check=true"] if check_weights else [])])
    if dry_run and resume:
        raise InputError("--dry-run starts nothing and --resume goes on: give one of the two")
    if dry_run:
        make_world(loaded.world)
        preflight(loaded)
        typer.echo(dump_recipe(loaded), nl=False)
        return
    with ConsoleDisplay() as display:
        summary = run(loaded, display, recipe if resume else None)
        display.note(render(summary, loaded))


@command(app)
def replay(
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.", metavar="RUN")], set_: Overrides = None
) -> None:
    """Train again from a run's trajectories, under another objective or rule."""
    from arl.metrics.console import ConsoleDisplay
    from arl.metrics.summary import render
    from arl.run.replay.replay_world import replay as train_again

    with ConsoleDisplay() as display:
        display.note(render(*train_again(run, set_ or (), display)))


@command(app)
def doctor(
    recipe: Annotated[
        Path | None, typer.Argument(help="Also check whether this one can start.", metavar="RECIPE")
    ] = None,
    set_: Overrides = None,
    python: Annotated[str | None, typer.Option(help="Also look for SGLang in this interpreter.")] = None,
) -> None:
    """Check this machine and its environments; exit code 2 if something is missing."""
    from arl.config.recipe_file import load_recipe
    from arl.run.doctor import examine

    good = True
    for finding in examine(load_recipe(recipe, set_ or ()) if recipe else None, python):
        typer.echo(str(finding))
        good = good and finding.good
    if not good:
        raise typer.Exit(2)


@command(app)
def eval_(recipe: RecipePath, model: Model, set_: Overrides = None) -> None:
    """Sampled accuracy of a model on a recipe's held-out problems, as JSON."""
    import msgspec

    from arl import clock
    from arl.config.recipe_file import load_recipe
    from arl.run.evaluate import evaluate_models

    loaded = load_recipe(recipe, [*(set_ or ()), "model.tiny=null", f"model.path={model}"])
    (accuracy,) = clock.run(lambda: evaluate_models(loaded, [Path(model)]))
    typer.echo(msgspec.json.encode(accuracy).decode())


@command(app)
def sft(
    model: Model,
    data: Annotated[Path, typer.Argument(help="jsonl of objects with prompt and response.", metavar="DATA")],
    output: Annotated[Path, typer.Argument(help="Directory to write; must not exist.", metavar="OUTPUT")],
    steps: Annotated[int, typer.Option(help="Optimizer steps.")],
    batch_size: Annotated[int, typer.Option(help="Pairs per optimizer step.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Peak; ramped up, then linear to 10 %.")] = 1e-5,
    dtype: Annotated[str, typer.Option(help="Compute type: float32 or bfloat16.")] = "float32",
    seed: Annotated[int, typer.Option(help="Of the order of the pairs.")] = 0,
) -> None:
    """Fine-tune a causal LM on prompt/response pairs."""
    from arl.launch.devices import visible_cores
    from arl.train.sft import PairsJob, run_job

    job = {"model": model, "data": str(data), "output": str(output), "steps": steps, "batch_size": batch_size}
    job |= {"learning_rate": learning_rate, "dtype": dtype, "seed": seed, "threads": visible_cores()}
    run_job(PairsJob, job)


@command(app)
def serve(
    model: Model,
    host: Annotated[
        str | None, typer.Option(help="Default: loopback. Beyond it, a key in ARL_RUN_KEY is required.")
    ] = None,
    port: Annotated[int, typer.Option(help="0: any free one.")] = 30000,
    slots: Annotated[int, typer.Option(help="Requests decoded together.")] = 32,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
) -> None:
    """Serve a model with the embedded engine, over SGLang's HTTP protocol."""
    from arl.engine.embedded.server import main

    address = [] if host is None else ["--host", host]
    main(["--model", model, *address, "--port", str(port), "--slots", str(slots), "--dtype", dtype])


bench = typer.Typer(help="Measure, and print JSON.", no_args_is_help=True)
app.add_typer(bench, name="bench")


@command(bench)
def engine(
    requests: Annotated[int, typer.Option(help="In all; fewer where few are open at a time.")] = 512,
    threads: Annotated[int, typer.Option(help="Of each side.")] = 1,
    repeats: Annotated[int, typer.Option(help="Of all sides, interleaved, after one warm-up.")] = 3,
) -> None:
    """The embedded engine beside SGLang and Hugging Face generate, and logprobs beside the trainer's."""
    from arl.bench import to_json
    from arl.bench.engine_bench import bench_engine

    typer.echo(to_json(bench_engine(requests, threads, repeats)))


@command(bench)
def async_(
    recipe: RecipePath = Path("recipes/study/async-vs-sync.yaml"),
    set_: Overrides = None,
    repeats: Annotated[int, typer.Option(help="Runs of each layout, interleaved.")] = 3,
) -> None:
    """One recipe with and without staleness, each using every core as best it can."""
    from arl.bench import to_json
    from arl.bench.asynchrony import bench_async

    typer.echo(to_json(bench_async(recipe, list(set_ or ()), repeats)))


@command(bench)
def controller(
    concurrent: Annotated[int, typer.Option(help="Open episodes; also an eighth and eight times as many.")] = 4096,
    episodes: Annotated[int, typer.Option(help="Of the long run, which also watches the memory.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(help="Of the shorter runs, interleaved.")] = 3,
) -> None:
    """The controller between null engine and null trainer: episodes a second, memory; and what a checkpoint costs."""
    from arl.bench import to_json
    from arl.bench.checkpoint_bench import bench_checkpoint
    from arl.bench.controller_bench import bench_controller

    measured = bench_controller(concurrent, episodes, repeats)
    typer.echo(to_json(measured | {"checkpoint": bench_checkpoint(repeats)}))


@command(bench)
def kernels(
    rows: Annotated[int | None, typer.Option(help="Tokens. 32768 on a GPU, 1024 on CPU.")] = None,
    vocab: Annotated[int | None, typer.Option(help="151936 on a GPU, 32768 on CPU.")] = None,
    width: Annotated[list[int] | None, typer.Option(help="Of the head; repeatable. 1536 and 4096, or 512.")] = None,
    repeats: Annotated[int, typer.Option(help="Of every contestant, interleaved, after a warm-up.")] = 5,
) -> None:
    """Log-probability and policy loss beside PyTorch, Liger-Kernel, CCE and the machine's ceilings."""
    import torch

    from arl.bench import to_json
    from arl.bench.kernels_bench import bench_kernels

    rows_, vocab_, widths = (32_768, 151_936, [1536, 4096]) if torch.cuda.is_available() else (1024, 32_768, [512])
    typer.echo(to_json(bench_kernels(rows or rows_, vocab or vocab_, width or widths, repeats)))


@command(bench)
def packing(draws: Annotated[int, typer.Option(help="Of each case; equal seeds for every packer.")] = 5) -> None:
    """The balancer of micro-batches beside AReaL's Algorithm 1, Karmarkar-Karp and next-fit; one row a case."""
    from arl.bench import to_json
    from arl.bench.packing_bench import bench_packing

    typer.echo(to_json(bench_packing(draws)))


@command(bench)
def trainer(
    checkpointing: Annotated[str, typer.Option(help="none, selective or full.")] = "none",
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile for each block.")] = False,
    steps: Annotated[int, typer.Option(help="Of each row, after two that warm up.")] = 7,
    threads: Annotated[int, typer.Option(help="Of the CPU.")] = 1,
) -> None:
    """One training step on one device: tokens/s, MFU, and what of it is forward and backward."""
    from arl.bench import to_json
    from arl.bench.trainer_bench import bench_trainer

    typer.echo(to_json(bench_trainer(steps, threads, checkpointing, compiled)))


@command(bench)
def sync(repeats: Annotated[int, typer.Option(help="Of every swap, interleaved, after one warm-up.")] = 9) -> None:
    """Weight transports: GB/s beside a plain copy of the same bytes, and the pause of a swap under load."""
    from arl.bench import to_json
    from arl.bench.sync_bench import bench_sync

    typer.echo(to_json(bench_sync(repeats)))


@command(bench)
def target(
    recipe: RecipePath,
    model: Model,
    ours: Annotated[list[str], typer.Option(help="NAME: overrides, separated by spaces. Repeatable.")],
    peer: Annotated[list[str] | None, typer.Option(help="NAME: command. Repeatable; see arl/bench/target.py.")] = None,
    accuracy: Annotated[float, typer.Option(help="To reach.")] = 0.9,
    seeds: Annotated[int, typer.Option(help="Runs of each system, interleaved.")] = 3,
) -> None:
    """Wall-clock from the first generation to an accuracy, beside peers."""
    from arl.bench import to_json
    from arl.bench.target import bench_target

    layouts = {name: overrides.split() for name, overrides in map(_named, ours)}
    commands = dict(map(_named, peer or ()))
    typer.echo(to_json(bench_target(recipe, Path(model), accuracy, range(seeds), layouts, commands)))


def main() -> None:
    """What `arl` runs."""
    code = 1  # of an error that nobody foresaw

    def end() -> None:
        from arl.launch.child import leave

        leave(code)

    atexit.register(end)  # first, and so called last
    try:
        app()
    except SystemExit as ended:
        code = int(ended.code or 0)
        raise


if __name__ == "__main__":
    main()
