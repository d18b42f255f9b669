"""Turn what a reward function returned into a Grade.

a number, or named parts ─► weighted sum ─► Grade
"""

import math
from collections.abc import Mapping

from arl.types import Grade

CORRECT = "correct"  # the part that an evaluation counts


def make_grade(result: object, weights: Mapping[str, float]) -> Grade:
    """Build the grade of one episode.

    Args:
        result: what the reward function returned: a number, or numbers by name.
        weights: of the named parts; a part without one counts 1.

    Raises:
        ValueError: it is neither, or one of the numbers is not finite.
    """
    if not isinstance(result, Mapping):
        return Grade(_finite(result, "the reward"))
    parts = {str(name): _finite(value, f"the reward's part {name}") for name, value in result.items()}
    if not parts:
        raise ValueError("the reward has no parts: return a finite number, or several by name")
    reward = sum(weights.get(name, 1.0) * value for name, value in parts.items())
    return Grade(reward, parts)


def accuracy_of(grade: Grade) -> float:
    """Return what an evaluation counts: the part `correct`, or the whole reward where there is none."""
    return grade.parts.get(CORRECT, grade.reward)


def _finite(value: object, what: str) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} is {value!r}: return a finite number") from error
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}: return a finite number")
    return number
