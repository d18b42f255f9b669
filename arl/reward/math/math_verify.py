"""Grade answers by the package math-verify, for numbers that compare with those of others.

    reward: {function: "arl.reward.math.math_verify:score"}

What it accepts is its own matter: it takes 0.3333333 for 1/3, and the boxes of a response for a set. Its time limits
need the main thread of a process, and are off: the deadline of a reward worker holds.
"""

from arl.reward.math.extraction import find_answer, gold_answer
from arl.reward.math.grader import unusable
from arl.types import Problem, Response

try:
    import math_verify
except ImportError as error:
    raise ImportError("the package math-verify is missing: pip install 'math-verify>=0.9,<0.10'") from error


def score(problem: Problem, response: Response) -> dict[str, float]:
    """Return whether math-verify takes the response for `correct`, and whether its answer is marked, as `format`."""
    gold = math_verify.parse(rf"\boxed{{{gold_answer(problem.answer)}}}", parsing_timeout=None)
    answer = math_verify.parse(response.text.rpartition("</think>")[2], parsing_timeout=None)
    _, is_marked = find_answer(response.text, response.truncated)
    is_correct = math_verify.verify(gold, answer, timeout_seconds=None)
    return {"correct": float(is_correct), "format": float(is_marked)}


score.unusable = unusable  # type: ignore[attr-defined]
