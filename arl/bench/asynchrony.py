"""Measure one recipe with and without staleness, each using every core as well as it can: `arl bench async`.

Synchronous RL (staleness 0, collocated: the side that runs has all cores) is tried in several layouts, and the ratio is
to the fastest of them, tail batching (arl.rollout.problem_queue) included. The runs are interleaved, so that a machine
whose speed changes changes for all of them. Each row says where the trainer's time went, as shares of all steps.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from arl.config.recipe_file import load_recipe
from arl.metrics.console import stderr_display
from arl.metrics.run_files import METRICS_FILE
from arl.metrics.summary import Summary
from arl.run.train import train

TRAINER_TIMES = (  # one after the other
    "wait/groups_s",
    "wait/bound_s",
    "wait/device_s",
    "time/pack_s",
    "time/proximal_s",
    "time/train_s",
    "sync/blocking_seconds",
)
ENGINE_TIMES = ("wait/gate_s", "sync/paused_s")
SYNCHRONOUS = ["rollout.staleness=0", "mode=collocated", "engine.kv_policy=recompute"]
TWO_REPLICAS = [*SYNCHRONOUS, "engine.replicas=2", "engine.threads=1"]
LAYOUTS = {
    "asynchronous": [],
    "synchronous": SYNCHRONOUS,
    "synchronous, tail-batched": [*SYNCHRONOUS, "rollout.tail_batching.oversample=1.25"],
    "synchronous, 2 replicas": TWO_REPLICAS,
    "synchronous, 2 replicas, 2 ranks": [*TWO_REPLICAS, "train.ranks=2", "train.threads=1"],
}


def bench_async(recipe: Path, overrides: list[str], repeats: int) -> dict[str, Any]:
    """Return the trained tokens per second of every layout, and the ratio asynchronous / fastest synchronous."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in LAYOUTS}
    with tempfile.TemporaryDirectory(prefix="arl-bench-") as directory, stderr_display() as display:
        for repeat in range(repeats):
            for name, layout in LAYOUTS.items():
                display.note(f"repeat {repeat}: {name}")
                loaded = load_recipe(recipe, [*overrides, f"output.directory={directory}", *layout])
                summary = train(loaded, display)
                runs[name].append(_row(summary))
    rates = {name: statistics.median(row["tokens_per_s"] for row in rows) for name, rows in runs.items()}
    fastest = max(LAYOUTS.keys() - {"asynchronous"}, key=rates.__getitem__)
    return {
        "recipe": recipe.name,
        "tokens_per_s": {name: round(rate, 1) for name, rate in rates.items()},
        "fastest_synchronous": fastest,
        "ratio": round(rates["asynchronous"] / rates[fastest], 3),
        "runs": runs,
    }


def _shares(directory: Path) -> dict[str, float]:
    """Return the shares of the time of all steps, and what they do not explain; engines' pauses overlap the others."""
    records = map(json.loads, (directory / METRICS_FILE).read_text().splitlines())
    steps = [record for record in records if "time/step_s" in record]
    whole = sum(record["time/step_s"] for record in steps)
    names = (*TRAINER_TIMES, *ENGINE_TIMES)
    shares = {name: sum(record.get(name, 0.0) for record in steps) / whole for name in names}
    shares["unexplained"] = 1 - sum(shares[name] for name in TRAINER_TIMES)
    return {name: round(share, 3) for name, share in shares.items()}


def _row(summary: Summary) -> dict[str, Any]:
    return {
        "seconds": round(summary.training_seconds, 2),
        "tokens_trained": summary.tokens_trained,
        "tokens_per_s": round(summary.tokens_trained / summary.training_seconds, 1),
        "idle_trainer": round(summary.idle_trainer, 3),
        "idle_engine": round(summary.idle_engine, 3),
        "stale_fraction": round(summary.stale_fraction, 3),
        "shares": _shares(Path(summary.directory)),
    }
