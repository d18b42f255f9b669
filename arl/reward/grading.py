"""Turn what a reward function returned into a verdict, and a verdict into a Grade.

a number, or named parts ─► Verdict ─► weighted sum ─► Grade ─► (shaped, in training)
"""

import contextlib
import math
import numbers
import traceback
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from msgspec import Struct

from arl.errors import printable
from arl.types import CORRECT, LARGEST_REWARD, Grade, Problem, Response

# A RewardFunction of arl.tasks.base, whose import would double the time that a worker takes to start.
RewardCallable = Callable[[Problem, Response], float | dict[str, float]]

MAX_CAUSE = 300  # characters
MAX_TRACEBACK = 3000
MAX_FRAMES = 20  # of a traceback, the innermost
WHAT_TO_RETURN = f"return a finite number, from -{LARGEST_REWARD:.0e} to {LARGEST_REWARD:.0e}".replace("+0", "")


class Verdict(Struct, frozen=True):
    """Hold what a reward function gave one response, before weights and shaping."""

    reward: float = 0.0  # what it returned, or the sum of its parts
    parts: dict[str, float] = {}  # as it named them
    error: str = ""  # why there is no grade, on one line; empty: there is one
    traceback: str = ""  # where it raised, if it did


class NoRewardError(ValueError):
    """Report that a reward function returned something else than a reward."""


def make_grade(result: object, weights: Mapping[str, float] = {}) -> Grade:
    """Build the grade of one episode from what the reward function returned: a number, or numbers by name.

    Raises:
        NoRewardError: it is neither, or one of the numbers is not finite.
    """
    return weigh(_read(result), weights)


def weigh(verdict: Verdict, weights: Mapping[str, float]) -> Grade:
    """Build the grade of a verdict: the weighted sum of its parts, of which one without a weight counts 1."""
    reward = verdict.reward
    if verdict.parts:
        reward = sum(weights.get(name, 1.0) * value for name, value in verdict.parts.items())
    if not is_reward(reward):
        return Grade(0.0, error=f"no reward: the weighted sum of its parts is {reward}: {WHAT_TO_RETURN}")
    return Grade(reward, verdict.parts, verdict.error)


def accuracy_of(grade: Grade) -> float:
    """Return what an evaluation counts: the part `correct`, or the whole reward where there is none."""
    return grade.parts.get(CORRECT, grade.reward)


def is_reward(number: float) -> bool:
    """Return whether a number can be trained on."""
    return math.isfinite(number) and abs(number) <= LARGEST_REWARD


def judge(function: RewardCallable, problem: Problem, response: Response) -> Verdict:
    """Call a reward function. An exception, or a result that is no reward, becomes the error of the verdict."""
    try:
        return _read(function(problem, response))
    except NoRewardError as error:
        return Verdict(error=f"no reward: {error}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a function raises costs its episode alone
        lines = traceback.format_exception(error, limit=-MAX_FRAMES)
        trace = "".join(line[-MAX_TRACEBACK:] for line in lines)[-MAX_TRACEBACK:]
        return Verdict(error=_cause(error), traceback=printable(trace)[-MAX_TRACEBACK:])


def read_number(value: Any, what: str) -> float:
    """Return a reward as a float; of an array or a tensor with one element, that element.

    Args:
        what: it is, for messages.

    Raises:
        NoRewardError: it is no finite number, or too large. Text is none, even if it reads like one.
    """
    number = math.nan
    # torch raises RuntimeError for a tensor of several elements
    with contextlib.suppress(AttributeError, TypeError, ValueError, OverflowError, RuntimeError):
        single = value if isinstance(value, numbers.Real | Decimal) else value.item()
        number = float(single) if isinstance(single, numbers.Real | Decimal) else math.nan
    if not is_reward(number):
        raise NoRewardError(f"{what} is {_one_line(repr(value)[:100])}: {WHAT_TO_RETURN}")
    return number


def _read(result: Any) -> Verdict:
    if not isinstance(result, Mapping):
        return Verdict(read_number(result, "the reward"))
    if not result:
        raise NoRewardError("the reward has no parts: return a finite number, or several by name")
    parts = {}
    for name, value in result.items():
        if not isinstance(name, str):
            raise NoRewardError(f"the reward has a part named by {type(name).__name__}: a name is text")
        parts[str.__str__(name)] = read_number(value, f"the reward's part {name}")  # of an enum of texts, its text
    return Verdict(read_number(sum(parts.values()), "the sum of the reward's parts"), parts)


def _cause(error: BaseException) -> str:
    """Describe an exception on one line: its type, its message, and the innermost line of code."""
    innermost = traceback.extract_tb(error.__traceback__, limit=-1)[0]
    kind = ": ".join(filter(None, (_one_line(type(error).__name__), _one_line(str(error)))))
    return f"{kind} ({innermost.name}, line {innermost.lineno})"


def _one_line(text: str) -> str:
    return printable(" ".join(text[: 4 * MAX_CAUSE].split()))[:MAX_CAUSE]
