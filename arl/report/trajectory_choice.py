"""Choose rows of a run's trajectory files to show: right, wrong, ungraded and lost ones, spread over the steps."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct

from arl.errors import DataError
from arl.metrics.ended_groups import is_right
from arl.report.trajectory_source import TrajectoryFile, left_out, read_scalars, spread
from arl.types import TRAINED

FILES_OF_A_RUN = 4
SCALARS = ("fate", "trained_at", "unshaped_reward", "reward_parts")
RIGHT = "right"
WRONG = "wrong"
NOT_SCORED = "not scored"
LOST = "lost"


class ChosenRow(Struct, frozen=True):
    """Point at one row of a file."""

    file: TrajectoryFile
    row: int


def choose_rows(files: Sequence[TrajectoryFile], count: int, notes: list[str]) -> list[ChosenRow]:
    """Choose `count` rows, an equal part of each outcome as far as there are any.

    Args:
        notes: gets a line for each file that is damaged.
    """
    outcomes: dict[str, list[ChosenRow]] = {}
    for file in spread(files, FILES_OF_A_RUN):
        try:
            own = _outcomes(file)
        except DataError as error:
            notes.append(left_out(error))
            continue
        for row, outcome in enumerate(own):
            outcomes.setdefault(outcome, []).append(ChosenRow(file, row))
    quotas = share_out(count, {outcome: len(rows) for outcome, rows in outcomes.items()})
    return list(chain.from_iterable(spread(rows, quotas[outcome]) for outcome, rows in outcomes.items()))


def share_out(count: int, available: Mapping[str, int]) -> dict[str, int]:
    """Divide a count into equal parts, none larger than what is available; what one leaves is for the others.

    >>> share_out(10, {"right": 100, "wrong": 100, "lost": 2})
    {'lost': 2, 'right': 4, 'wrong': 4}
    """
    parts = {}
    left = count
    ascending = sorted(available, key=lambda name: (available[name], name))
    for place, name in enumerate(ascending):
        part = min(available[name], left // (len(ascending) - place))
        parts[name] = part
        left -= part
    return parts


def _outcomes(file: TrajectoryFile) -> Iterable[str]:
    table = read_scalars(file, SCALARS)
    return [outcome_of(row) for row in table.to_pylist()]


def outcome_of(row: Mapping[str, Any]) -> str:
    """Return the outcome of an episode by its row in a trajectory file."""
    if row["fate"] != TRAINED:
        return LOST
    right = rightness(row)
    if right is None:
        return NOT_SCORED
    return RIGHT if right else WRONG


def rightness(row: Mapping[str, Any]) -> bool | None:
    """Return whether an episode counts as right; None: it was not scored."""
    reward = row["unshaped_reward"]
    return None if reward is None else is_right(reward, dict(row["reward_parts"] or ()))
