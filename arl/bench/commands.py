"""Define the commands of `arl bench`: each prints one JSON document. Heavy imports live inside them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from arl.config.command_options import Overrides, RecipePath


def engine(
    requests: Annotated[int, typer.Option(min=1, help="In all; fewer where few are open at a time.")] = 512,
    threads: Annotated[int, typer.Option(min=1, help="Of each side.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Of all sides, interleaved, after one warm-up.")] = 3,
) -> None:
    """Measure the embedded engine beside SGLang and Hugging Face generate."""
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


def controller(
    concurrent: Annotated[
        int, typer.Option(min=8, help="Open episodes; also an eighth and eight times as many.")
    ] = 4096,
    episodes: Annotated[int, typer.Option(min=1, help="Of the long run, which also watches the memory.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(min=1, help="Of the shorter runs, interleaved.")] = 3,
) -> None:
    """Measure the controller alone: episodes a second, time per group, memory."""
    from arl.bench import to_json
    from arl.bench.controller_bench import bench_controller

    report = bench_controller(concurrent, episodes, repeats)
    typer.echo(to_json(report))


def kernels(
    rows: Annotated[int | None, typer.Option(min=1, help="Tokens. 32768 on a GPU, 1024 on CPU.")] = None,
    vocab: Annotated[int | None, typer.Option(min=2, help="151936 on a GPU, 32768 on CPU.")] = None,
    width: Annotated[
        list[int] | None, typer.Option(min=1, help="Of the head; repeatable. 1536 and 4096, or 512.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Of every contestant, interleaved, after a warm-up.")] = 5,
) -> None:
    """Measure log-probability and policy loss beside PyTorch and the machine's ceilings."""
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
) -> None:
    """Measure weight transports: GB/s, and the pause of a swap."""
    from arl.bench import to_json
    from arl.bench.sync_bench import SHAPES, bench_sync
    from arl.metrics.console import stderr_display

    report = bench_sync(repeats, size or list(SHAPES), stderr_display().note)
    typer.echo(to_json(report))


COMMANDS: list[Callable[..., None]] = [engine, async_, controller, kernels, trainer, sync]
