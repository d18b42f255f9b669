"""Define the commands of `arl bench`: each prints one JSON document. Heavy imports live inside them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from arl.config.command_options import Overrides, RecipePath


def _print(document: dict[str, Any]) -> None:
    from arl.bench import to_json

    typer.echo(to_json(document))


def engine(
    requests: Annotated[int, typer.Option(min=1, help="In all; fewer where few are open at a time.")] = 512,
    threads: Annotated[int, typer.Option(min=1, help="Of each side.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Of all sides, interleaved, after one warm-up.")] = 3,
) -> None:
    """Measure the embedded engine beside SGLang and Hugging Face generate."""
    from arl.bench.engine_bench import bench_engine

    _print(bench_engine(requests, threads, repeats))


def async_(
    recipe: RecipePath = Path("recipes/study/async-vs-sync.yaml"),
    set_: Overrides = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each layout, interleaved.")] = 3,
) -> None:
    """Run one recipe with and without staleness."""
    from arl.bench.asynchrony import bench_async

    _print(bench_async(recipe, set_ or [], repeats))


def controller(
    concurrent: Annotated[int, typer.Option(min=8, help="Open episodes; also an eighth and eight times.")] = 4096,
    episodes: Annotated[int, typer.Option(min=1, help="Of the long run, which also watches the memory.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(min=1, help="Of the shorter runs, interleaved.")] = 3,
) -> None:
    """Measure the controller alone: episodes a second, time per group, memory."""
    from arl.bench.controller_bench import bench_controller

    _print(bench_controller(concurrent, episodes, repeats))


def kernels(
    rows: Annotated[int | None, typer.Option(min=1, help="Tokens. 32768 on a GPU, 1024 on CPU.")] = None,
    vocab: Annotated[int | None, typer.Option(min=2, help="151936 on a GPU, 32768 on CPU.")] = None,
    width: Annotated[list[int] | None, typer.Option(min=1, help="Of the head. 1536 and 4096, or 512.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Of every contestant, interleaved, after a warm-up.")] = 5,
) -> None:
    """Measure log-probability and policy loss beside PyTorch and the machine's ceilings."""
    from arl.bench.kernels_bench import bench_kernels

    _print(bench_kernels(rows, vocab, width, repeats))


def trainer(
    checkpointing: Annotated[str, typer.Option(help="none, selective or full.")] = "none",
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile for each block.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Of each row, after two that warm up.")] = 7,
    threads: Annotated[int, typer.Option(min=1, help="Of the CPU.")] = 1,
) -> None:
    """Measure one training step on one device: tokens/s and MFU."""
    from arl.bench.trainer_bench import bench_trainer

    _print(bench_trainer(steps, threads, checkpointing, compiled))


def sync(
    repeats: Annotated[int, typer.Option(min=1, help="Of every swap, interleaved, after one warm-up.")] = 9,
    size: Annotated[list[str] | None, typer.Option(help="Of the model: 0.4M, 25M or 135M. [all]")] = None,
) -> None:
    """Measure weight transports: GB/s, and the pause of a swap."""
    from arl.bench.sync_bench import bench_sync
    from arl.metrics.console import stderr_display

    _print(bench_sync(repeats, size, stderr_display().note))


def rewards(
    calls: Annotated[int, typer.Option(min=1, help="Answers, in each repeat.")] = 4000,
    workers: Annotated[int, typer.Option(min=1, help="reward.workers.")] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Each in fresh workers.")] = 3,
) -> None:
    """Measure answers graded a second, ours beside math-verify."""
    from arl.bench.rewards_bench import bench_rewards

    _print(bench_rewards(calls, workers, repeats))


def sandbox(
    runs: Annotated[int, typer.Option(min=1, help="Of each worker.")] = 500,
    workers: Annotated[int, typer.Option(min=1, help="Processes, each with a sandbox.")] = 2,
    endless: Annotated[int, typer.Option(min=1, help="Programs that never end, beside honest ones.")] = 32,
) -> None:
    """Measure programs run a second, a shell's first command, and what endless programs cost honest ones."""
    from arl.bench.sandbox_bench import bench_sandbox

    _print(bench_sandbox(runs, workers, endless))


COMMANDS: list[Callable[..., None]] = [engine, async_, controller, kernels, trainer, sync, rewards, sandbox]
