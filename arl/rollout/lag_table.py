"""Compute how old each group is when it is trained, under `rollout.lag`. Imports no torch.

    lag: 3 | {dist: FILE} | {trace: RUN} ─► load_lags ─► lags (steps, P) ─► arl.rollout.exact_lag.LagSchedule

Group n = v·P + i is the i-th that step v consumes. Its lag is min(draw_n, v), as no version is older than the first.
"""

import os
import random
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from arl.config.recipe import Recipe
from arl.config.recipe_file import differences, load_recipe
from arl.config.yaml_loader import YamlError, read_document
from arl.errors import InputError

COLUMNS = ["trained_at", "group_id", "policy_versions", "loss_mask"]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
WEIGHTS = TypeAdapter(dict[Annotated[int, Field(ge=0)], Weight])


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
    if isinstance(lag, int):
        _refuse_unreachable(lag, f"rollout.lag {lag}", steps)
        draws = np.full((steps, recipe.rollout.problems_per_step), lag, np.int32)
    elif lag.dist is not None:
        draws = _draw_lags(lag.dist, recipe)
    else:
        assert lag.trace is not None
        draws = _read_trace(Path(lag.trace), recipe)
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


def _read_weights(path: Path) -> dict[int, float]:
    """Read a mapping of lag to weight > 0, in the order of lags; the largest weight becomes 1."""
    place = f"rollout.lag.dist {path}"
    remedy = "give a JSON or YAML mapping of lag to weight, like {0: 0.5, 2: 0.5}"
    try:
        document = read_document(path.read_text().expandtabs())  # JSON may be indented by tabs
        weights = WEIGHTS.validate_python(document.values)
    except ValidationError as error:
        first = error.errors()[0]
        key = first["loc"][:1]
        line = f":{document.lines[key]}: {key[0]}" if key else ""
        raise InputError(f"{place}{line}: {first['msg']}, and it is {first['input']!r}; {remedy}") from error
    except (OSError, UnicodeDecodeError, YamlError) as error:
        raise InputError(f"{place}: cannot be read ({error}); {remedy}") from error
    largest = max(weights.values(), default=0.0)
    if not largest:
        raise InputError(f"{place}: no lag has a weight above 0; {remedy}")
    return {lag: weights[lag] / largest for lag in sorted(weights) if weights[lag]}


def _read_trace(directory: Path, recipe: Recipe) -> np.ndarray:
    """Read the staleness of each group of a recorded run: (steps, P) int32, in the order of the recording."""
    steps = recipe.train.steps
    place = f"rollout.lag.trace {directory}"
    if not os.path.isfile(directory / "summary.json"):
        raise InputError(f"{place}: is no finished run, since it has no summary.json; give the directory of one")
    # Of another model, data or batch the group n would not stand for ours.
    found = next(differences(_identity(load_recipe(directory / "recipe.yaml")), _identity(recipe)), None)
    if found is not None:
        field, other, mine = found
        raise InputError(
            f"{place}: is of another recipe: {field} is {other!r} there and {mine!r} here; make them equal, or give "
            "another run"
        )
    recorded = _recorded_staleness(directory)
    if len(recorded) < steps:
        raise InputError(
            f"{place}: recorded trajectories of {len(recorded)} steps, and train.steps is {steps}; lower it, or give a "
            "longer run that had output.trajectories"
        )
    rows = [list(recorded[step].values()) for step in range(steps)]
    return np.array(rows, np.int32)


def _identity(recipe: Recipe) -> dict[str, Any]:
    rollout = recipe.rollout
    return {
        "model": recipe.model.model_dump(mode="json"),
        "data": recipe.data.model_dump(mode="json"),
        "rollout": {"problems_per_step": rollout.problems_per_step, "group_size": rollout.group_size},
    }


def _recorded_staleness(directory: Path) -> dict[int, dict[int, int]]:
    """Map step -> group -> age of its oldest loss token, groups in the order of the recording."""
    from arl.metrics.trajectory_files import read_batches, trajectory_files  # imports pyarrow

    staleness: dict[int, dict[int, int]] = {}
    for rows in (rows for file in trajectory_files(directory) for rows in read_batches(file, COLUMNS)):
        for step, group, versions, mask in zip(*(rows[name] for name in COLUMNS), strict=True):
            if not step.is_valid:
                continue  # a group that was lost
            version = step.as_py()
            sampled = versions.values.to_numpy()[mask.values.to_numpy(zero_copy_only=False)]
            ages = staleness.setdefault(version, {})
            age = version - int(sampled.min(initial=version))
            ages[group.as_py()] = max(ages.get(group.as_py(), 0), age)
    return staleness
