"""Measure the time from the first generation to the first snapshot that reaches an accuracy: `arl bench target`.

    for each seed:   our layouts, then the peers' commands          only training is timed
                     every snapshot ─► the same evaluator ─► the first one at or above the target

A peer is any command that trains from the same model, prints one JSON object with `curve`: [{"step", "wall_s"}], and
writes its snapshots as state dicts, stepNNN.pt. {model}, {snapshots} and {seed} are filled into its command.
"""

import json
import shlex
import statistics
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from arl import clock
from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.errors import InputError, RunError
from arl.metrics.console import ConsoleDisplay, stderr_display
from arl.run.evaluation.serving import evaluate_models
from arl.run.train import train

PEER_SECONDS = 3600.0


class Snapshot(Struct, frozen=True):
    """Hold the weights after one step of one system."""

    step: int
    seconds: float  # since the first generation
    model: Path  # directory


class Race(Struct, frozen=True):
    """Hold what every system of one comparison shares."""

    recipe: Path
    model: Path  # directory of the weights with which everybody starts
    accuracy: float  # to reach

    def load(self, overrides: Sequence[str]) -> Recipe:
        """Load the recipe for the common model."""
        start = ["model.tiny=null", f"model.path={self.model}", "warmup=null"]
        return load_recipe(self.recipe, [*start, *overrides])


def bench_target(
    race: Race, seeds: Sequence[int], ours: Mapping[str, Sequence[str]], peers: Mapping[str, str]
) -> dict[str, Any]:
    """Return the seconds to the accuracy of every system and seed, the medians, and our ratio to each peer.

    Args:
        race: recipe, model and accuracy.
        seeds: of the runs of each system.
        ours: name -> recipe overrides.
        peers: name -> command.

    Raises:
        InputError: there is nothing to measure an accuracy on.
        RunError: a peer failed.
    """
    if not race.load([]).eval.problems:
        raise InputError(f"{race.recipe}: eval.problems is 0, and accuracy is measured on them: raise eval.problems")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in (*ours, *peers)}
    with stderr_display() as display:
        for seed in seeds:
            with tempfile.TemporaryDirectory(prefix="arl-bench-") as name:
                taken = _train_all(race, seed, ours, peers, Path(name), display)
                for system, snapshots in taken.items():
                    row = {"seed": seed, **_reach(race, snapshots, display)}
                    runs[system].append(row)
                    display.note(f"seed {seed}: {system}: {row['seconds']} s to {race.accuracy}")
    medians = {system: median([row["seconds"] for row in rows]) for system, rows in runs.items()}
    return {
        "accuracy": race.accuracy,
        "median_seconds": medians,
        "ratios": compare(medians, ours, peers),
        "runs": runs,
    }


def median(seconds: Sequence[float | None]) -> float | None:
    """Return the median; None if one of the runs did not reach the accuracy."""
    arrived = [s for s in seconds if s is not None]
    return statistics.median(arrived) if len(arrived) == len(seconds) else None


def compare(medians: Mapping[str, float | None], ours: Collection[str], peers: Collection[str]) -> dict[str, float]:
    """Divide the median of each of our layouts by that of each peer, where both reached the accuracy."""
    ratios = {}
    for layout in ours:
        for peer in peers:
            ours_seconds = medians[layout]
            peer_seconds = medians[peer]
            if ours_seconds is not None and peer_seconds is not None:
                ratios[f"{layout} / {peer}"] = round(ours_seconds / peer_seconds, 3)
    return ratios


def _train_all(
    race: Race,
    seed: int,
    ours: Mapping[str, Sequence[str]],
    peers: Mapping[str, str],
    directory: Path,
    display: ConsoleDisplay,
) -> dict[str, list[Snapshot]]:
    """Train every system from one seed, and return the snapshots of each."""
    taken: dict[str, list[Snapshot]] = {}
    for system, overrides in ours.items():
        display.note(f"seed {seed}: {system}")
        taken[system] = _run_ours(race, seed, overrides, directory, display)
    for system, command in peers.items():
        display.note(f"seed {seed}: {system}")
        taken[system] = _run_peer(command, race.model, seed, directory / system)
    for system, snapshots in taken.items():
        if not snapshots:
            raise RunError(f"{system}: it reported no snapshot, so there is nothing to evaluate")
    return taken


def _run_ours(
    race: Race, seed: int, overrides: Sequence[str], directory: Path, display: ConsoleDisplay
) -> list[Snapshot]:
    settings = [
        f"seed={seed}",
        f"output.directory={directory}",
        "output.checkpoint_every=1",
        "output.keep_checkpoints=1000000",
        "eval.problems=0",
        *overrides,
    ]
    summary = train(race.load(settings), display)
    run = Path(summary.directory)
    snapshots = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        checkpoint = run / "checkpoints" / f"step_{record['step']}"
        snapshots.append(Snapshot(record["step"], record["time_s"], checkpoint))
    return snapshots


def _run_peer(command: str, model: Path, seed: int, directory: Path) -> list[Snapshot]:
    snapshots = directory / "snapshots"
    argv = [part.format(model=model, snapshots=snapshots, seed=seed) for part in shlex.split(command)]
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, check=False, timeout=PEER_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise RunError(f"the peer was still running after {PEER_SECONDS:.0f} s: {shlex.join(argv)}") from error
    except OSError as error:
        raise RunError(f"the peer could not be started ({error}): {shlex.join(argv)}") from error
    if done.returncode:
        raise RunError(f"the peer exited with code {done.returncode}: {shlex.join(argv)}")
    try:
        curve = [(point["step"], point["wall_s"]) for point in json.loads(done.stdout)["curve"]]
    except (ValueError, KeyError, TypeError) as error:
        rule = "a peer prints one JSON object with `curve`, a list of {step, wall_s}"
        raise RunError(f"{rule} ({error!r}): {shlex.join(argv)}") from error
    return [
        Snapshot(step, seconds, _convert(snapshots / f"step{step:03d}.pt", model))
        for step, seconds in curve
        if step > 0  # 0 is the model that everybody starts with
    ]


def _convert(state_file: Path, model: Path) -> Path:
    """Write a peer's state dict as a model directory beside it."""
    directory = state_file.with_suffix("")
    state = torch.load(state_file, weights_only=True)
    empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    empty.save_pretrained(directory, state_dict=state)
    AutoTokenizer.from_pretrained(model).save_pretrained(directory)
    return directory


def _reach(race: Race, snapshots: Sequence[Snapshot], display: ConsoleDisplay) -> dict[str, Any]:
    """Evaluate the snapshots of one run, and report the first one that is accurate enough."""
    recipe = race.load([])
    models = [snapshot.model for snapshot in snapshots]
    scores = clock.run(lambda: evaluate_models(recipe, models, display.note))
    return first_at(race.accuracy, snapshots, [score.mean_reward for score in scores])


def first_at(accuracy: float, snapshots: Sequence[Snapshot], scores: Sequence[float]) -> dict[str, Any]:
    """Report the first snapshot whose score is at or above `accuracy`, and the whole curve."""
    curve = []
    reached: Snapshot | None = None
    for snapshot, score in zip(snapshots, scores, strict=True):
        curve.append((round(snapshot.seconds, 3), round(score, 4)))
        if reached is None and score >= accuracy:
            reached = snapshot
    return {
        "seconds": None if reached is None else round(reached.seconds, 3),
        "step": None if reached is None else reached.step,
        "final_accuracy": curve[-1][1],
        "total_seconds": curve[-1][0],
        "curve": curve,
    }
