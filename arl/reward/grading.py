"""Turn what a reward function returned into a verdict, and a verdict into a Grade.

a number, or named parts ─► Verdict ─► weighted sum ─► Grade ─► (arl.reward.shaping, in training)
"""

import math
import traceback
from collections.abc import Callable, Mapping

from arl.reward.messages import Verdict
from arl.types import CORRECT, Grade, Problem, Response

# A RewardFunction of arl.tasks.base, whose import would double the time that a worker takes to start.
RewardCallable = Callable[[Problem, Response], float | dict[str, float]]

LONGEST_CAUSE = 300  # characters
LONGEST_TRACEBACK = 4000


def make_grade(result: object, weights: Mapping[str, float]) -> Grade:
    """Build the grade of one episode.

    Args:
        result: what the reward function returned: a number, or numbers by name.
        weights: of the named parts; a part without one counts 1.

    Raises:
        ValueError: it is neither, or one of the numbers is not finite.
    """
    return weigh(_read(result), weights)


def weigh(verdict: Verdict, weights: Mapping[str, float]) -> Grade:
    """Build the grade of a verdict. A part without a weight counts 1; an error is graded 0."""
    reward = verdict.reward
    if verdict.parts:
        reward = sum(weights.get(name, 1.0) * value for name, value in verdict.parts.items())
    return Grade(reward, verdict.parts, verdict.error)


def judge(function: RewardCallable, problem: Problem, response: Response) -> Verdict:
    """Call a reward function. An exception, or a result that is no reward, becomes the error of the verdict."""
    try:
        result = function(problem, response)
    except (Exception, SystemExit) as error:
        return Verdict(error=_cause(error), traceback=traceback.format_exc()[-LONGEST_TRACEBACK:])
    try:
        return _read(result)
    except ValueError as error:
        return Verdict(error=f"no reward: {error}")


def accuracy_of(grade: Grade) -> float:
    """Return what an evaluation counts: the part `correct`, or the whole reward where there is none."""
    return grade.parts.get(CORRECT, grade.reward)


def _read(result: object) -> Verdict:
    if not isinstance(result, Mapping):
        return Verdict(_finite(result, "the reward"))
    parts = {str(name): _finite(value, f"the reward's part {name}") for name, value in result.items()}
    if not parts:
        raise ValueError("the reward has no parts: return a finite number, or several by name")
    return Verdict(_finite(sum(parts.values()), "the sum of the reward's parts"), parts)


def _finite(value: object, what: str) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        shown = repr(value)[:100]
        raise ValueError(f"{what} is {shown}: return a finite number") from error
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}: return a finite number")
    return number


def _cause(error: BaseException) -> str:
    """Describe an exception on one line: its type, its message, and the innermost line of code."""
    innermost = traceback.extract_tb(error.__traceback__)[-1]
    return f"{_one_line(error)} ({innermost.name}, line {innermost.lineno})"


def _one_line(error: BaseException) -> str:
    message = " ".join(str(error).split())[:LONGEST_CAUSE]
    kind = type(error).__name__
    return f"{kind}: {message}" if message else kind
