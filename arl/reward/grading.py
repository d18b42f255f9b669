"""Turn what a reward function returned into a verdict, and a verdict into a Grade.

a number, or named parts ─► Verdict ─► weighted sum ─► Grade ─► (arl.reward.shaping, in training)

What a function returns or raises may be of a class of its own, whose methods hang or raise. They are called here alone,
as if they were a part of the function.
"""

import itertools
import numbers
import traceback
from collections.abc import Callable, Mapping
from decimal import Decimal

from arl.errors import printable
from arl.reward.messages import (
    LONGEST_NAME,
    LONGEST_TRACEBACK,
    MOST_PARTS,
    Verdict,
    is_part_name,
    is_reward,
)
from arl.types import CORRECT, LARGEST_REWARD, Grade, Problem, Response

# A RewardFunction of arl.tasks.base, whose import would double the time that a worker takes to start.
RewardCallable = Callable[[Problem, Response], float | dict[str, float]]

LONGEST_CAUSE = 300  # characters
MOST_FRAMES = 20  # of a traceback, the innermost
WHAT_TO_RETURN = f"return a finite number, from -{LARGEST_REWARD:.0e} to {LARGEST_REWARD:.0e}".replace("+0", "")


class NoRewardError(ValueError):
    """Report that a reward function returned something else than a reward."""


def make_grade(result: object, weights: Mapping[str, float]) -> Grade:
    """Build the grade of one episode.

    Args:
        result: what the reward function returned: a number, or numbers by name.
        weights: of the named parts; a part without one counts 1.

    Raises:
        NoRewardError: it is neither, or one of the numbers is not finite.
    """
    verdict = weigh(_read(result), weights)
    if verdict.error:
        raise NoRewardError(verdict.error)
    return grade_of(verdict)


def weigh(verdict: Verdict, weights: Mapping[str, float]) -> Verdict:
    """Return the verdict with the weighted sum of its parts as its reward. A part without a weight counts 1."""
    if verdict.error or not verdict.parts:
        return verdict
    reward = sum(weights.get(name, 1.0) * value for name, value in verdict.parts.items())
    if not is_reward(reward):
        return Verdict(error=f"no reward: the weighted sum of its parts is {reward}: {WHAT_TO_RETURN}")
    return Verdict(reward, verdict.parts)


def grade_of(verdict: Verdict) -> Grade:
    """Build the grade of a verdict. An error is graded 0."""
    return Grade(verdict.reward, verdict.parts, verdict.error)


def judge(function: RewardCallable, problem: Problem, response: Response) -> Verdict:
    """Call a reward function. An exception, or a result that is no reward, becomes the error of the verdict."""
    try:
        return _read(function(problem, response))
    except NoRewardError as error:
        return Verdict(error=f"no reward: {error}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a function raises costs its episode alone
        return Verdict(error=_cause(error), traceback=_trace(error))


def accuracy_of(grade: Grade) -> float:
    """Return what an evaluation counts: the part `correct`, or the whole reward where there is none."""
    return grade.parts.get(CORRECT, grade.reward)


def read_number(value: object, what: str) -> float:
    """Return a reward as a float.

    Args:
        what: it is, for messages.

    Raises:
        NoRewardError: it is no finite number, or too large. Text is none, even if it reads like one.
    """
    try:
        number = float(_plain(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise _no_number(value, what) from error
    if not is_reward(number):
        raise NoRewardError(f"{what} is {number}: {WHAT_TO_RETURN}")
    return number


def _plain(value: object) -> numbers.Real | Decimal:
    """Return a value if it is a number. Of an array or a tensor with one element, return that.

    `float` reads text too, also in arrays and in other objects.

    Raises:
        TypeError: it is no number.
        ValueError: an array with several elements.
    """
    if not isinstance(value, numbers.Real | Decimal) and hasattr(value, "item"):
        try:
            value = value.item()
        except RuntimeError as error:  # torch, of several elements
            raise ValueError(str(error)) from error
    if not isinstance(value, numbers.Real | Decimal):
        raise TypeError
    return value


def _no_number(value: object, what: str) -> NoRewardError:
    try:
        shown = _one_line(repr(value)[:100])
    except ValueError:  # Python writes out no integer of more than 4300 digits
        shown = "a number with too many digits to be shown"
    return NoRewardError(f"{what} is {shown}: {WHAT_TO_RETURN}")


def _read(result: object) -> Verdict:
    if not isinstance(result, Mapping):
        return Verdict(read_number(result, "the reward"))
    if not result:
        raise NoRewardError("the reward has no parts: return a finite number, or several by name")
    names = list(itertools.islice(result, MOST_PARTS + 1))
    if len(names) > MOST_PARTS:
        raise NoRewardError(f"the reward has more than {MOST_PARTS} parts")
    parts: dict[str, float] = {}
    for name in names:
        known = _part_name(name)
        parts[known] = read_number(result[name], f"the reward's part {known}")
    return Verdict(read_number(sum(parts.values()), "the sum of the reward's parts"), parts)


def _part_name(name: object) -> str:
    """Return the name of a part as plain text; it may be of an enum of texts."""
    if not isinstance(name, str):
        raise NoRewardError(f"the reward has a part named by {type(name).__name__[:100]}: a name is text")
    text = str.__str__(name)
    if not is_part_name(text):
        shown = _one_line(repr(text[:100]))
        raise NoRewardError(
            f"the reward has a part named {shown}: a name is a line of text, of at most {LONGEST_NAME} characters"
        )
    return text


def _cause(error: BaseException) -> str:
    """Describe an exception on one line: its type, its message, and the innermost line of code."""
    kind = _one_line(type(error).__name__)
    message = _one_line(_message(error))
    innermost = traceback.extract_tb(error.__traceback__, limit=-1)[0]
    place = f"({_one_line(innermost.name)}, line {innermost.lineno})"
    return f"{kind}: {message} {place}" if message else f"{kind} {place}"


def _message(error: BaseException) -> str:
    try:
        return str.__str__(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as another:  # its __str__ is the function's as well
        return f"its message cannot be shown, because that raises {type(another).__name__}"


def _trace(error: BaseException) -> str:
    """Return the end of a traceback. No message of it is shown whole, nor a line of code."""
    try:
        lines = traceback.format_exception(error, limit=-MOST_FRAMES)
    except KeyboardInterrupt:
        raise
    except BaseException as another:
        return f"its traceback cannot be shown, because that raises {type(another).__name__}"
    return printable("".join(line[-LONGEST_TRACEBACK:] for line in lines)[-LONGEST_TRACEBACK:])[-LONGEST_TRACEBACK:]


def _one_line(text: str) -> str:
    return printable(" ".join(text[: 4 * LONGEST_CAUSE].split()))[:LONGEST_CAUSE]
