"""Define the commands of `arl bench`: each prints one JSON document. Heavy imports live inside them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from arl.config.command_options import Model, Overrides, RecipePath


def engine(
    requests: Annotated[int, typer.Option(min=1, help="In all; fewer where few are open at a time.")] = 512,
    threads: Annotated[int, typer.Option(min=1, help="Of each side.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Of all sides, interleaved, after one warm-up.")] = 3,
) -> None:
    """Measure the embedded engine beside other engines.

    Beside SGLang and Hugging Face generate; also compares its logprobs with the trainer's.
    """
    from arl.bench import to_json
    from arl.bench.engine_bench import bench_engine

    report = bench_engine(requests, threads, repeats)
    typer.echo(to_json(report))


def async_(
    recipe: RecipePath = Path("recipes/study/async-vs-sync.yaml"),
    set_: Overrides = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each layout, interleaved.")] = 3,
) -> None:
    """Run one recipe with and without staleness."""
    from arl.bench import to_json
    from arl.bench.asynchrony import bench_async

    report = bench_async(recipe, set_ or [], repeats)
    typer.echo(to_json(report))


def evaluation(
    recipe: RecipePath = Path("recipes/quickstart.yaml"),
    set_: Overrides = None,
    every: Annotated[int, typer.Option(min=1, help="Steps between evaluations.")] = 10,
    pairs: Annotated[int, typer.Option(min=1, help="Runs without and with it, interleaved.")] = 3,
) -> None:
    """Measure what evaluation during training costs the training."""
    from arl.bench import to_json
    from arl.bench.evaluation_bench import bench_evaluation

    report = bench_evaluation(recipe, set_ or [], every, pairs)
    typer.echo(to_json(report))


def controller(
    concurrent: Annotated[
        int, typer.Option(min=8, help="Open episodes; also an eighth and eight times as many.")
    ] = 4096,
    episodes: Annotated[int, typer.Option(min=1, help="Of the long run, which also watches the memory.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(min=1, help="Of the shorter runs, interleaved.")] = 3,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Instead: carry so many nodes of 8 null engines, or as many as it can, over HTTP."),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="With --nodes: processes that hold the null engines.")] = 2,
    rate: Annotated[float, typer.Option(min=0.1, help="With --nodes: tokens a second of one request.")] = 50.0,
    interval: Annotated[int, typer.Option(min=1, help="With --nodes: engine.stream_interval.")] = 16,
    window: Annotated[float, typer.Option(min=1, help="With --nodes: seconds in which each rung is measured.")] = 15.0,
) -> None:
    """Measure the controller alone: episodes a second, memory; with --nodes, what it carries over HTTP."""
    from arl.bench import to_json

    if nodes is not None:
        from arl.bench.scale_bench import Ladder, bench_scale

        ladder = Ladder(
            nodes=nodes,
            processes=processes,
            rate=rate,
            interval=interval,
            longest=1024,
            warm_seconds=1024 / rate,  # as long as the longest request takes
            window_seconds=window,
        )
        typer.echo(to_json(bench_scale(ladder)))
        return
    from arl.bench.checkpoint_bench import bench_checkpoint
    from arl.bench.controller_bench import bench_controller

    report = bench_controller(concurrent, episodes, repeats)
    report["checkpoint"] = bench_checkpoint(repeats)
    typer.echo(to_json(report))


def kernels(
    rows: Annotated[int | None, typer.Option(min=1, help="Tokens. 32768 on a GPU, 1024 on CPU.")] = None,
    vocab: Annotated[int | None, typer.Option(min=2, help="151936 on a GPU, 32768 on CPU.")] = None,
    width: Annotated[
        list[int] | None, typer.Option(min=1, help="Of the head; repeatable. 1536 and 4096, or 512.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Of every contestant, interleaved, after a warm-up.")] = 5,
) -> None:
    """Measure log-probability and policy loss beside other kernels.

    Beside PyTorch, Liger-Kernel, CCE and the machine's ceilings.
    """
    import torch

    from arl.bench import to_json
    from arl.bench.kernels_bench import bench_kernels

    has_gpu = torch.cuda.is_available()
    report = bench_kernels(
        rows=rows or (32_768 if has_gpu else 1024),
        vocab=vocab or (151_936 if has_gpu else 32_768),
        widths=width or ([1536, 4096] if has_gpu else [512]),
        repeats=repeats,
    )
    typer.echo(to_json(report))


def packing(
    draws: Annotated[int, typer.Option(min=1, help="Of each case; equal seeds for every packer.")] = 5,
) -> None:
    """Measure the balancer of micro-batches beside other algorithms.

    Beside AReaL's Algorithm 1, Karmarkar-Karp and next-fit; one row a case. Also how long ranks are idle for it.
    """
    from arl.bench import to_json
    from arl.bench.packing_bench import bench_packing

    report = bench_packing(draws)
    typer.echo(to_json(report))


def trainer(
    checkpointing: Annotated[str, typer.Option(help="none, selective or full.")] = "none",
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile for each block.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Of each row, after two that warm up.")] = 7,
    threads: Annotated[int, typer.Option(min=1, help="Of the CPU.")] = 1,
) -> None:
    """Measure one training step on one device: tokens/s and MFU."""
    from arl.bench import to_json
    from arl.bench.trainer_bench import bench_trainer

    report = bench_trainer(steps, threads, checkpointing, compiled)
    typer.echo(to_json(report))


def sync(
    repeats: Annotated[int, typer.Option(min=1, help="Of every swap, interleaved, after one warm-up.")] = 9,
    size: Annotated[
        list[str] | None, typer.Option(help="Parameters of the model: 0.4M, 25M or 135M; several times. Default: all.")
    ] = None,
    engines: Annotated[
        list[int] | None, typer.Option(min=1, help="Servers that one broadcast reaches; several times. Default: 1 2 4.")
    ] = None,
) -> None:
    """Measure weight transports: GB/s, and the pause of a swap."""
    from arl.bench import to_json
    from arl.bench.sync_bench import SHAPES, bench_sync
    from arl.metrics.console import stderr_display

    report = bench_sync(repeats, size or list(SHAPES), engines or (1, 2, 4), stderr_display().note)
    typer.echo(to_json(report))


def broadcast(
    repeats: Annotated[int, typer.Option(min=1, help="Of each, interleaved, after one warm-up.")] = 5,
) -> None:
    """Measure what a broadcast and a computation on one device cost each other."""
    from arl.bench import to_json
    from arl.bench.overlap_bench import bench_broadcast

    report = bench_broadcast(repeats)
    typer.echo(to_json(report))


def publication(
    versions: Annotated[int, typer.Option(min=3, help="From each place of the buffers.")] = 6,
) -> None:
    """Measure the trainer's side of a weight update: memory, gather, broadcast."""
    from arl.bench import to_json
    from arl.bench.publication_bench import bench_publication

    report = bench_publication(versions)
    typer.echo(to_json(report))


def gpu(
    only: Annotated[list[str] | None, typer.Option(help="Name of a check; repeatable. Without it, all six.")] = None,
    out: Annotated[
        Path, typer.Option(help="Directory of the documents and their table; by default the clone's own, in git.")
    ] = Path("docs/benchmarks/gpu"),
) -> None:
    """Run the checks that only a GPU can settle: tests, kernels, broadcast, quickstart, publication and sglang.

    Start it in a clone of arl. One GPU suffices. Each of their ten commands is ended after ten minutes; how long they
    take has not been measured.
    """
    from arl.bench import to_json
    from arl.bench.gpu_run import run_gpu_checks
    from arl.metrics.console import stderr_display

    report = run_gpu_checks(only or [], out, stderr_display().note)
    typer.echo(to_json(report))


def rewards(
    workers: Annotated[int, typer.Option(min=1, help="Reward processes.")] = 2,
    groups: Annotated[int, typer.Option(min=1, help="Of 8 responses each; a tenth where all take algebra.")] = 500,
    repeats: Annotated[int, typer.Option(min=1, help="Of each mixture, interleaved.")] = 3,
) -> None:
    """Measure short math verifications a second through the reward pool."""
    from arl.bench import to_json
    from arl.bench.reward_bench import bench_rewards

    report = bench_rewards(workers, groups, repeats)
    typer.echo(to_json(report))


def target(
    recipe: RecipePath,
    model: Model,
    ours: Annotated[list[str], typer.Option(help="NAME: overrides, separated by spaces. Repeatable.")],
    peer: Annotated[list[str] | None, typer.Option(help="NAME: command. Repeatable; see arl/bench/target.py.")] = None,
    accuracy: Annotated[float, typer.Option(help="To reach.")] = 0.9,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each system, interleaved.")] = 3,
) -> None:
    """Measure the time to an accuracy, beside peers."""
    from arl.bench import to_json
    from arl.bench.target import Race, bench_target

    layouts = {name: value.split() for name, value in _by_name(ours).items()}
    commands = _by_name(peer or [])
    for name in layouts.keys() & commands.keys():
        raise typer.BadParameter(f"--ours and --peer both name a system {name!r}: give each a name of its own")
    race = Race(recipe, Path(model), accuracy)
    report = bench_target(race, range(seeds), layouts, commands)
    typer.echo(to_json(report))


def _by_name(options: list[str]) -> dict[str, str]:
    """Split each `NAME: value`. Names are unique, because a second system of one name would replace the first."""
    systems: dict[str, str] = {}
    for option in options:
        name, colon, value = option.partition(":")
        if not colon:
            raise typer.BadParameter(f"{option!r}: write it as NAME: value")
        if name in systems:
            raise typer.BadParameter(f"two systems are named {name!r}: give each a name of its own")
        systems[name] = value
    return systems


COMMANDS: list[Callable[..., None]] = [
    engine,
    async_,
    evaluation,
    controller,
    kernels,
    packing,
    trainer,
    sync,
    broadcast,
    publication,
    gpu,
    rewards,
    target,
]
