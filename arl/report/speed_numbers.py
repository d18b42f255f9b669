"""Compute how fast runs were, and what each side's time went to, with the share that nothing explains.

Trainer: seconds of a step = waits for its batch, by cause + packing + proximal pass + training + snapshot + the rest.
Engines: their time = busy + admission held back + paused for swaps + the rest.
"""

import math
from collections.abc import Mapping

import numpy as np

from arl.report.read_runs import LoadedRun

TRAINER_PARTS = {  # metric -> what the trainer did in that time
    "wait/groups_s": "waits: too few groups finished",
    "wait/bound_s": "waits: a late group has to come first",
    "wait/device_s": "waits: the device's turn",
    "time/pack_s": "packs",
    "time/proximal_s": "proximal pass",
    "time/train_s": "trains",
    "time/halves_s": "measures the gradients of halves",
    "sync/blocking_seconds": "copies weights",
}
UNEXPLAINED = "unexplained"
BUSY = "generates"
GATED = "admission held back"  # by the staleness bound, an exact lag or rollout.max_groups
ENGINE_PARTS = {"wait/gate_s": GATED, "sync/paused_s": "paused for swaps"}

Shares = dict[str, float]  # what a side's time went to -> its share


def tokens_per_second(run: LoadedRun) -> float:
    """Return trained tokens per second of the run's clock, from its first admission to its last step."""
    seconds = run.columns.last("time_s")
    return run.columns.last("tokens/trained_total") / seconds if seconds > 0 else math.nan


def trainer_shares(run: LoadedRun) -> Shares:
    """Compute the shares of the trainer's time."""
    parts = _parts(run, TRAINER_PARTS)
    return parts | {UNEXPLAINED: 1.0 - sum(parts.values())}


def engine_shares(run: LoadedRun) -> Shares:
    """Compute the shares of the engines' time."""
    idle = float(np.nansum(run.columns.number("idle/engine") * run.columns.number("time/step_s")))
    parts = {BUSY: 1.0 - idle / _total(run), **_parts(run, ENGINE_PARTS)}
    return parts | {UNEXPLAINED: 1.0 - sum(parts.values())}


def _total(run: LoadedRun) -> float:
    return float(np.nansum(run.columns.number("time/step_s"))) or math.nan


def _parts(run: LoadedRun, names: Mapping[str, str]) -> Shares:
    """Return the share of the time of all steps that each metric has; nothing for one that was never recorded."""
    parts = {}
    for metric, name in names.items():
        values = run.columns.number(metric)
        if np.isfinite(values).any():
            parts[name] = float(np.nansum(values)) / _total(run)
    return parts
