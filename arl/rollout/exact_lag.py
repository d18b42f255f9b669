"""Keep an exact lag: every token that step v trains is exactly as old as `rollout.lag` says, at any speed.

Step v consumes P groups. Group n belongs to step v = n // P and has the lag ℓ_n ≤ v. Only version v − ℓ_n samples it.
Engines therefore serve one version at a time. *Wave* u is what version u samples: a slot for each group n with
v_n − ℓ_n = u. These groups belong to steps u … u + m for the largest lag m:

    load u ─► admit every slot of wave u ─► all of them finished ─► load the next version that has slots
                        ▲        │
                        └────────┘ failed or rejected: the slot is filled again, by another problem and version u

The trainer runs ahead meanwhile: step v needs only the P groups of step v.

Why this never gets stuck: say that step v waits. Its groups are of waves ≤ v, and so are the versions that engines
must load for them: all of them exist, and every version is published and kept while it is needed (below). A wave ends,
since its slots are finitely many and each is filled in the end, or the limit on failed or rejected problems ends the
run. So wave follows wave up to v, all groups of step v are there, and it starts.

Why m + 2 published versions are enough: let u be the newest wave of which any group was admitted. All groups of step
u + m + 1 are of later waves, of which there is nothing yet, so the trainer's version is at most u + m + 1. Engines have
loaded u and load only newer versions from now on: these are among u + 1 … u + m + 1, and with u itself, which a
checkpoint may want, they are m + 2. The newest m + 2 that are published contain all of these that exist.
"""

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from arl.config.recipe import Recipe
from arl.config.recipe_file import differences, load_recipe
from arl.config.yaml_loader import YamlError, read_document
from arl.errors import InputError
from arl.rollout.staleness import Admission

COLUMNS = ["trained_at", "group_id", "policy_versions", "loss_mask"]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
WEIGHTS = TypeAdapter(dict[Annotated[int, Field(ge=0)], Weight])


class LagSchedule(Admission):
    """Track the unfilled slots of the current wave. O(log(m·P)) per group, O(m·P) per wave.

    Args:
        lags: (steps, P) int, versions: the lag of every group of every step, row v at most v.
    """

    def __init__(self, lags: np.ndarray) -> None:
        super().__init__(problems_per_step=lags.shape[1])
        self._lags = lags
        self._longest = int(lags.max())
        self._wave = 0
        self._unfilled = self._slots(0)

    def is_open(self, loaded_version: int) -> bool:
        """Return whether the wave of `loaded_version` has an unfilled slot."""
        return bool(self._slots_left(loaded_version))

    def admit(self, loaded_version: int) -> int:
        """Fill the slot of the earliest step that is unfilled in this wave, and return that step."""
        return self._begin(heapq.heappop(self._slots_left(loaded_version)))

    def restore(self, num_trained: int, loaded_version: int, outstanding: Sequence[tuple[int, int]]) -> None:
        """Go on from a checkpoint: see Admission.

        Earlier waves are full and later ones empty. In this one, what is neither trained nor outstanding is unfilled.
        """
        super().restore(num_trained, loaded_version, outstanding)
        next_step = num_trained // self.problems_per_step
        untrained = Counter(step for step in self._slots(loaded_version) if step >= next_step)
        filled = Counter(step for wave, step in outstanding if wave == loaded_version)
        assert filled <= untrained, f"wave {loaded_version} has more groups than slots: {filled}, {untrained}"
        self._wave = loaded_version
        self._unfilled = sorted((untrained - filled).elements())  # sorted, and so a heap

    def release(self, deadline: int) -> None:
        """Empty the slot of a group that failed or was rejected. It belongs to this wave."""
        super().release(deadline)
        heapq.heappush(self._unfilled, deadline)

    def next_version(self, loaded_version: int, version: int, running: int) -> int | None:
        """Choose the next version with slots once this wave is full and finished; the newest, if none has any."""
        if running or self._slots_left(loaded_version) or version <= loaded_version:
            return None
        return next((wave for wave in range(loaded_version + 1, version) if self._slots(wave)), version)

    def first_blocking(self, version: int, chosen: Counter[int]) -> int | None:
        """Return `version`, unless all of `chosen` belong to this very step."""
        return None if chosen.keys() == {version} else version

    def _slots_left(self, wave: int) -> list[int]:
        """Return the heap of steps with unfilled slots in `wave`, which is the current wave or the next one."""
        if wave != self._wave:
            skipped = [other for other in range(self._wave + 1, wave) if self._slots(other)]
            assert not self._unfilled, f"wave {wave} begins before wave {self._wave} is full"
            assert not skipped, f"wave {wave} begins before the waves {skipped}"
            self._wave = wave
            self._unfilled = self._slots(wave)
        return self._unfilled

    def _slots(self, wave: int) -> list[int]:
        """List the step of every slot of `wave`, in order."""
        last_step = wave + self._longest
        lags = self._lags[wave : last_step + 1]
        lags_of_this_wave = np.arange(len(lags))  # row i is of step wave + i, for which this wave has the lag i
        rows, _ = np.nonzero(lags == lags_of_this_wave[:, None])
        return [wave + int(row) for row in rows]


def load_lags(recipe: Recipe) -> np.ndarray | None:
    """Return the lag of every group of the run; None without `rollout.lag`.

    Group v·P + i is the i-th that step v consumes. Its lag is min(draw, v), as no version is older than the first.

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
        weights = WEIGHTS.validate_python(read_document(path.read_text().expandtabs()).values)  # JSON may have tabs
    except ValidationError as error:
        first = error.errors()[0]
        key = "".join(f"{part}: " for part in first["loc"][:1])
        raise InputError(f"{place}: {key}{first['msg']}, and it is {first['input']!r}; {remedy}") from error
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
    if not (directory / "summary.json").is_file():
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
        "data": recipe.model_dump(mode="json")["data"],
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
