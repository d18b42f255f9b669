"""Measure the time from the first generation to the first snapshot that reaches an accuracy: `arl bench target`.

    for each seed:   our layouts, then the peers' commands          only training is timed
    afterwards:      every snapshot ─► the same evaluator ─► the first one at or above the target

A peer is any command that trains from the same model, prints one JSON object with `curve`: [{"step", "wall_s"}], and
writes its snapshots as state dicts, stepNNN.pt. {model}, {snapshots} and {seed} are filled into its command.
"""

import json
import shlex
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from arl import clock
from arl.bench import stderr_display
from arl.config.recipe_file import load_recipe
from arl.errors import RunError
from arl.metrics.console import ConsoleDisplay
from arl.models.load import save_model
from arl.run.evaluate import evaluate_models
from arl.run.train import train

PEER_SECONDS = 3600.0

Snapshot = tuple[float, Path]  # seconds since the first generation, model directory


def bench_target(
    recipe: Path, model: Path, accuracy: float, seeds: Sequence[int], ours: dict[str, list[str]], peers: dict[str, str]
) -> dict[str, Any]:
    """Return the seconds to `accuracy` for every system and seed, medians, and the ratio of each of ours to each peer.

    Args:
        model: directory of the weights with which everybody starts.
        ours: name -> recipe overrides.
        peers: name -> command.
    """
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in (*ours, *peers)}
    with stderr_display() as display:
        for seed in seeds:
            with tempfile.TemporaryDirectory(prefix="arl-bench-") as name:
                directory = Path(name)
                taken: dict[str, list[Snapshot]] = {}
                for system, overrides in ours.items():
                    display.note(f"seed {seed}: {system}")
                    taken[system] = _run_ours(recipe, model, seed, overrides, directory, display)
                for system, command in peers.items():
                    display.note(f"seed {seed}: {system}")
                    taken[system] = _run_peer(command, model, seed, directory / system)
                for system, snapshots in taken.items():
                    runs[system].append({"seed": seed, **_reach(recipe, model, snapshots, accuracy)})
                    display.note(f"seed {seed}: {system}: {runs[system][-1]['seconds']} s to {accuracy}")
    median = {system: _median([row["seconds"] for row in rows]) for system, rows in runs.items()}
    ratios = {f"{a} / {b}": round(x / y, 3) for a in ours for b in peers if (x := median[a]) and (y := median[b])}
    return {"accuracy": accuracy, "median_seconds": median, "ratios": ratios, "runs": runs}


def _median(seconds: list[float | None]) -> float | None:
    """Return the median; None if one of the runs did not reach the accuracy."""
    arrived = [s for s in seconds if s is not None]
    return statistics.median(arrived) if len(arrived) == len(seconds) else None


def _run_ours(
    recipe: Path, model: Path, seed: int, overrides: list[str], directory: Path, display: ConsoleDisplay
) -> list[Snapshot]:
    fixed = ["model.tiny=null", f"model.path={model}", "warmup=null", f"seed={seed}", f"output.directory={directory}"]
    loaded = load_recipe(
        recipe, [*fixed, "output.checkpoint_every=1", "output.keep_checkpoints=1000000", "eval.problems=0", *overrides]
    )
    summary = train(loaded, display)
    lines = (Path(summary.directory) / "metrics.jsonl").read_text().splitlines()
    steps = [(r["time_s"], r["step"]) for r in map(json.loads, lines)]
    return [(seconds, Path(summary.directory) / "checkpoints" / f"step_{step}") for seconds, step in steps]


def _run_peer(command: str, model: Path, seed: int, directory: Path) -> list[Snapshot]:
    snapshots = directory / "snapshots"
    argv = [part.format(model=model, snapshots=snapshots, seed=seed) for part in shlex.split(command)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=False, timeout=PEER_SECONDS)
    if done.returncode:
        raise RunError(f"the peer exited with code {done.returncode}: {' '.join(argv)}")
    curve = json.loads(done.stdout)["curve"]
    return [(p["wall_s"], _convert(snapshots / f"step{p['step']:03d}.pt", model)) for p in curve if p["step"]]


def _convert(state_file: Path, model: Path) -> Path:
    """Write a peer's state dict as a model directory beside it."""
    directory = state_file.with_suffix("")
    state = torch.load(state_file, weights_only=True)
    empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    save_model(empty, AutoTokenizer.from_pretrained(model), state, directory)
    return directory


def _reach(recipe: Path, model: Path, snapshots: list[Snapshot], accuracy: float) -> dict[str, Any]:
    loaded = load_recipe(recipe, ["model.tiny=null", f"model.path={model}", "warmup=null"])
    scores = clock.run(lambda: evaluate_models(loaded, [directory for _, directory in snapshots]))
    curve = [
        (round(seconds, 3), round(score.mean_reward, 4)) for (seconds, _), score in zip(snapshots, scores, strict=True)
    ]
    first = next((i for i, (_, score) in enumerate(curve) if score >= accuracy), None)
    return {
        "seconds": None if first is None else curve[first][0],
        "step": None if first is None else first + 1,
        "final_accuracy": curve[-1][1],
        "total_seconds": curve[-1][0],
        "curve": curve,
    }
