"""Compute how fast runs were, and what each side's time went to, with the share that nothing explains.

Trainer: seconds of a step = waits for its batch, by cause + packing + proximal pass + training + snapshot + the rest.
Engines: their time = busy + admission held back + paused for swaps + the rest.
"""

import math

import numpy as np

from arl.report.quantities import places
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
WAITS = ("wait/groups_s", "wait/bound_s", "wait/device_s")
CAUSE_UNKNOWN = "waits: cause not recorded"
UNEXPLAINED = "unexplained"
BUSY = "generates"
GATED = "admission held back"  # by the staleness bound, an exact lag or rollout.max_groups
PAUSED = "paused for swaps"
IDLE = "idle, cause not recorded"


Shares = dict[str, float]  # what a side's time went to -> its share


def tokens_per_second(run: LoadedRun) -> float:
    """Return trained tokens per second of the run's clock, from its first admission to its last step."""
    seconds = run.columns.last("time_s")
    tokens = places(run, "tokens")
    measured = tokens[np.isfinite(tokens)]
    if not len(measured) or not seconds > 0:
        return math.nan
    return float(measured[-1]) / seconds


def step_seconds(run: LoadedRun) -> np.ndarray:
    """Return the seconds of each step, (steps,) float: as recorded, or else the differences of time_s."""
    recorded = run.columns.number("time/step_s")
    if np.isfinite(recorded).any():
        return recorded
    between: np.ndarray = np.diff(run.columns.number("time_s"), prepend=0.0)
    between[1:][np.diff(run.columns.steps) != 1] = np.nan  # a step between them was not recorded
    if run.columns.steps[0] != 1:
        between[0] = np.nan
    return between


def trainer_shares(run: LoadedRun) -> Shares | None:
    """Compute the shares of the trainer's time; None without any step's time."""
    seconds = step_seconds(run)
    total = float(np.nansum(seconds))
    if not total:
        return None
    parts = {}
    for metric, name in TRAINER_PARTS.items():
        spent = _sum(run, metric, seconds)
        if not math.isnan(spent):
            parts[name] = spent / total
    if not any(TRAINER_PARTS[metric] in parts for metric in WAITS):
        waited = float(np.nansum(run.columns.number("idle/trainer") * seconds))
        parts = {CAUSE_UNKNOWN: waited / total, **parts}
    parts[UNEXPLAINED] = 1.0 - sum(parts.values())
    return parts


def engine_shares(run: LoadedRun) -> Shares | None:
    """Compute the shares of the engines' time; None if their idle time was not recorded."""
    seconds = step_seconds(run)
    total = float(np.nansum(seconds))
    idle = run.columns.number("idle/engine") * seconds
    if not total or not np.isfinite(idle).any():
        return None
    share_idle = float(np.nansum(idle)) / total
    parts = {BUSY: 1.0 - share_idle}
    causes = {"wait/gate_s": GATED, "sync/paused_s": PAUSED}
    for metric, name in causes.items():
        spent = _sum(run, metric, seconds)
        if not math.isnan(spent):
            parts[name] = spent / total
    knows_all_causes = all(name in parts for name in causes.values())
    rest = UNEXPLAINED if knows_all_causes else IDLE
    parts[rest] = 1.0 - sum(parts.values())
    return parts


def _sum(run: LoadedRun, metric: str, seconds: np.ndarray) -> float:
    """Sum a metric over the steps whose seconds are known; NaN if it was never recorded."""
    values = run.columns.number(metric)[np.isfinite(seconds)]
    return float(np.nansum(values)) if np.isfinite(values).any() else math.nan
