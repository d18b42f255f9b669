"""Compute how old each group is when it is trained, under `rollout.lag`. Imports no torch.

    lag: 3 | {dist: FILE} | {trace: RUN} ─► load_lags ─► lags (steps, P) ─► arl.rollout.exact_lag.LagSchedule

Group n = v·P + i is the i-th that step v consumes. Its lag is min(draw_n, v), as no version is older than the first.
"""

import math
import os
import random
from pathlib import Path
from typing import Any

import numpy as np

from arl.config.recipe import LagFile, Recipe
from arl.config.recipe_file import differences, load_recipe
from arl.config.yaml_loader import YamlError, read_document
from arl.errors import DataError, InputError, RecipeError

COLUMNS = ["trained_at", "group_id", "policy_versions", "loss_mask"]
MOST_DIGITS = 9  # of a lag
MOST_GROUPS = 10**7  # of a run


def load_lags(recipe: Recipe) -> np.ndarray | None:
    """Return the lag of every group of the run; None without `rollout.lag`.

    Returns:
        (steps, P) int32, versions; row v is at most v.

    Raises:
        InputError: a file cannot be read or does not hold lags, or a lag can never be reached.
    """
    lag = recipe.rollout.lag
    steps = recipe.train.steps
    if lag is None:
        return None
    groups = steps * recipe.rollout.problems_per_step
    if groups > MOST_GROUPS:
        raise InputError(
            f"train.steps {steps}: with rollout.lag a run has at most {MOST_GROUPS} groups, whose lags are computed "
            f"before it starts, and this one has {groups}; give fewer steps"
        )
    if isinstance(lag, int):
        _refuse_unreachable(lag, f"rollout.lag {lag}", steps)
        draws = np.full((steps, recipe.rollout.problems_per_step), lag, np.int32)
    elif lag.dist is not None:
        draws = _draw_lags(lag.dist, recipe)
    else:
        draws = _read_trace(lag, recipe)
    largest = np.arange(steps, dtype=np.int32)  # that each step can have
    clamped: np.ndarray = np.minimum(draws, largest[:, None])
    return clamped


def _draw_lags(file: str, recipe: Recipe) -> np.ndarray:
    """Draw a lag for each group by the weights in `file`: (steps, P) int32."""
    steps = recipe.train.steps
    p = recipe.rollout.problems_per_step
    weights = _read_weights(Path(file))
    _refuse_unreachable(max(weights), f"rollout.lag.dist {file}", steps)
    random_numbers = random.Random(f"lags {recipe.seed}")
    # `choices` uses one random number a draw, so draw n is the same in a run of any length.
    drawn = random_numbers.choices(list(weights), list(weights.values()), k=steps * p)
    return np.array(drawn, np.int32).reshape(steps, p)


def _refuse_unreachable(lag: int, place: str, steps: int) -> None:
    if lag >= steps:
        raise InputError(
            f"{place}: with train.steps {steps} a lag of {lag} would always be cut to the number of its step; "
            f"give at most {steps - 1}, or more steps"
        )


# ---- a distribution


def _read_weights(path: Path) -> dict[int, float]:
    """Read a mapping of lag to weight > 0, in the order of lags; the largest weight becomes 1."""
    remedy = "give a JSON or YAML mapping of lag to weight, like {0: 0.5, 2: 0.5}"
    try:
        text = path.read_text()
        document = read_document(text.expandtabs())  # JSON may be indented by tabs
    except (OSError, UnicodeDecodeError, YamlError) as error:
        raise InputError(f"rollout.lag.dist {path}: cannot be read ({error}); {remedy}") from error
    if not isinstance(document.values, dict) or not document.values:
        raise InputError(f"rollout.lag.dist {path}: is no mapping, or an empty one; {remedy}")
    weights: dict[int, float] = {}
    for key, value in document.values.items():
        place = f"rollout.lag.dist {path}:{document.lines[(key,)]}"
        lag = _lag(key, place)
        if lag in weights:  # "1" and "01" are two keys
            raise InputError(f"{place}: lag {lag} is given twice; keep one")
        weights[lag] = _weight(value, place)
    if not any(weights.values()):
        raise InputError(f"rollout.lag.dist {path}: all weights are 0; give at least one lag a positive weight")
    largest = max(weights.values())
    return {lag: weights[lag] / largest for lag in sorted(weights) if weights[lag]}


def _lag(text: str, place: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        raise InputError(
            f"{place}: the lag {text!r} is no whole number of versions from 0 with at most "
            f"{MOST_DIGITS} digits; lags are ages"
        )
    return int(text)


def _weight(value: Any, place: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise InputError(f"{place}: the weight {value!r} is no finite number from 0; weights are relative frequencies")
    return float(value)


# ---- a trace


def _read_trace(lag: LagFile, recipe: Recipe) -> np.ndarray:
    """Read the staleness of each group of a recorded run: (steps, P) int32, in the order of the recording."""
    assert lag.trace is not None
    steps = recipe.train.steps
    p = recipe.rollout.problems_per_step
    directory = Path(lag.trace)
    place = f"rollout.lag.trace {directory}"
    if not os.path.isfile(directory / "summary.json"):
        raise InputError(f"{place}: is no finished run, since it has no summary.json; give the directory of one")
    _refuse_other(directory, recipe, place)
    recorded = _recorded_staleness(directory, place)
    num_recorded = len(recorded)
    if num_recorded < steps:
        raise InputError(
            f"{place}: recorded trajectories of {num_recorded} steps, and train.steps is {steps}; lower it, or give a "
            "longer run that had output.trajectories"
        )
    rows = [list(recorded.get(step, {}).values()) for step in range(steps)]
    for step, row in enumerate(rows):
        if len(row) != p:
            raise InputError(f"{place}: its step {step} has {len(row)} groups instead of {p}; give an intact run")
    return np.array(rows, np.int32)


def _refuse_other(directory: Path, recipe: Recipe, place: str) -> None:
    """Refuse a trace of another model, data or batch, because its group n would not stand for ours."""
    try:
        theirs = load_recipe(directory / "recipe.yaml")
    except RecipeError as error:
        raise InputError(f"{place}: its recipe cannot be read: {error}; give the run of this version of arl") from error
    found = next(differences(_identity(theirs), _identity(recipe)), None)
    if found is not None:
        field, other, mine = found
        raise InputError(
            f"{place}: is of another recipe: {field} is {other!r} there and {mine!r} here; make them equal, or give "
            "another run"
        )


def _identity(recipe: Recipe) -> dict[str, Any]:
    rollout = recipe.rollout
    return {
        "model": recipe.model.model_dump(mode="json"),
        "data": recipe.data.model_dump(mode="json"),
        "rollout": {"problems_per_step": rollout.problems_per_step, "group_size": rollout.group_size},
    }


def _recorded_staleness(directory: Path, place: str) -> dict[int, dict[int, int]]:
    """Map step -> group -> age of its oldest loss token, groups in the order of the recording."""
    from arl.metrics.trajectory_reading import read_batches, trajectory_files  # imports pyarrow

    staleness: dict[int, dict[int, int]] = {}
    try:
        for file in trajectory_files(directory):
            for rows in read_batches(file, COLUMNS):
                columns = zip(*(rows[name] for name in COLUMNS), strict=True)
                for step, group, versions, mask in columns:
                    if not step.is_valid:
                        continue  # a group that was lost
                    version = step.as_py()
                    sampled = versions.values.to_numpy()[mask.values.to_numpy(zero_copy_only=False)]
                    ages = staleness.setdefault(version, {})
                    age = version - int(sampled.min(initial=version))
                    ages[group.as_py()] = max(ages.get(group.as_py(), 0), age)
    except DataError as error:
        raise InputError(f"{place}: its trajectories cannot be read: {error}") from error
    return staleness
