"""The commands of `arl bench`: each prints one JSON document. Heavy imports live inside them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

RecipePath = Annotated[Path, typer.Argument(help="Recipe YAML; see recipes/.", metavar="RECIPE")]
Model = Annotated[str, typer.Argument(help="Directory or Hugging Face name of a causal LM.", metavar="MODEL")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a field, as in --set rollout.staleness=0. Repeatable.", metavar="A.B=X"),
]


def engine(
    requests: Annotated[int, typer.Option(help="In all; fewer where few are open at a time.")] = 512,
    threads: Annotated[int, typer.Option(help="Of each side.")] = 1,
    repeats: Annotated[int, typer.Option(help="Of all sides, interleaved, after one warm-up.")] = 3,
) -> None:
    """Measure the embedded engine beside other engines.

    Beside SGLang and Hugging Face generate; also compares its logprobs with the trainer's.
    """
    from arl.bench import to_json
    from arl.bench.engine_bench import bench_engine

    typer.echo(to_json(bench_engine(requests, threads, repeats)))


def async_(
    recipe: RecipePath = Path("recipes/study/async-vs-sync.yaml"),
    set_: Overrides = None,
    repeats: Annotated[int, typer.Option(help="Runs of each layout, interleaved.")] = 3,
) -> None:
    """Run one recipe with and without staleness."""
    from arl.bench import to_json
    from arl.bench.asynchrony import bench_async

    typer.echo(to_json(bench_async(recipe, list(set_ or ()), repeats)))


def controller(
    concurrent: Annotated[int, typer.Option(help="Open episodes; also an eighth and eight times as many.")] = 4096,
    episodes: Annotated[int, typer.Option(help="Of the long run, which also watches the memory.")] = 1_000_000,
    repeats: Annotated[int, typer.Option(help="Of the shorter runs, interleaved.")] = 3,
) -> None:
    """Measure the controller alone: episodes a second, memory."""
    from arl.bench import to_json
    from arl.bench.checkpoint_bench import bench_checkpoint
    from arl.bench.controller_bench import bench_controller

    measured = bench_controller(concurrent, episodes, repeats)
    typer.echo(to_json(measured | {"checkpoint": bench_checkpoint(repeats)}))


def kernels(
    rows: Annotated[int | None, typer.Option(help="Tokens. 32768 on a GPU, 1024 on CPU.")] = None,
    vocab: Annotated[int | None, typer.Option(help="151936 on a GPU, 32768 on CPU.")] = None,
    width: Annotated[list[int] | None, typer.Option(help="Of the head; repeatable. 1536 and 4096, or 512.")] = None,
    repeats: Annotated[int, typer.Option(help="Of every contestant, interleaved, after a warm-up.")] = 5,
) -> None:
    """Measure log-probability and policy loss beside other kernels.

    Beside PyTorch, Liger-Kernel, CCE and the machine's ceilings.
    """
    import torch

    from arl.bench import to_json
    from arl.bench.kernels_bench import bench_kernels

    rows_, vocab_, widths = (32_768, 151_936, [1536, 4096]) if torch.cuda.is_available() else (1024, 32_768, [512])
    typer.echo(to_json(bench_kernels(rows or rows_, vocab or vocab_, width or widths, repeats)))


def packing(draws: Annotated[int, typer.Option(help="Of each case; equal seeds for every packer.")] = 5) -> None:
    """Measure the balancer of micro-batches beside other algorithms.

    Beside AReaL's Algorithm 1, Karmarkar-Karp and next-fit; one row a case.
    """
    from arl.bench import to_json
    from arl.bench.packing_bench import bench_packing

    typer.echo(to_json(bench_packing(draws)))


def trainer(
    checkpointing: Annotated[str, typer.Option(help="none, selective or full.")] = "none",
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile for each block.")] = False,
    steps: Annotated[int, typer.Option(help="Of each row, after two that warm up.")] = 7,
    threads: Annotated[int, typer.Option(help="Of the CPU.")] = 1,
) -> None:
    """Measure one training step on one device: tokens/s and MFU."""
    from arl.bench import to_json
    from arl.bench.trainer_bench import bench_trainer

    typer.echo(to_json(bench_trainer(steps, threads, checkpointing, compiled)))


def sync(repeats: Annotated[int, typer.Option(help="Of every swap, interleaved, after one warm-up.")] = 9) -> None:
    """Measure weight transports: GB/s, and the pause of a swap."""
    from arl.bench import to_json
    from arl.bench.sync_bench import bench_sync

    typer.echo(to_json(bench_sync(repeats)))


def target(
    recipe: RecipePath,
    model: Model,
    ours: Annotated[list[str], typer.Option(help="NAME: overrides, separated by spaces. Repeatable.")],
    peer: Annotated[list[str] | None, typer.Option(help="NAME: command. Repeatable; see arl/bench/target.py.")] = None,
    accuracy: Annotated[float, typer.Option(help="To reach.")] = 0.9,
    seeds: Annotated[int, typer.Option(help="Runs of each system, interleaved.")] = 3,
) -> None:
    """Measure the time to an accuracy, beside peers."""
    from arl.bench import to_json
    from arl.bench.target import bench_target

    layouts = {name: overrides.split() for name, overrides in map(_named, ours)}
    commands = dict(map(_named, peer or ()))
    typer.echo(to_json(bench_target(recipe, Path(model), accuracy, range(seeds), layouts, commands)))


def _named(option: str) -> tuple[str, str]:
    name, colon, value = option.partition(":")
    if not colon:
        raise typer.BadParameter(f"{option!r}: write it as NAME: value")
    return name, value


COMMANDS: list[Callable[..., None]] = [engine, async_, controller, kernels, packing, trainer, sync, target]
