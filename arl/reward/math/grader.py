r"""Grade answers to math problems: find the answer in the response, and compare it with the gold one.

    response ─► extraction ─► answer ─► latex (tokens, units) ─► compare ─► correct: 0 or 1
                                gold ─►          "            ─►    └─ values, within a second

docs/rewards.md says which answers count as equal. Nothing here imports torch.
"""

import signal
import threading
from collections.abc import Callable
from functools import lru_cache
from types import FrameType
from typing import TypeVar

from arl.reward.math.compare import choice_of, compare_choices, same_answer, spell_answer, without_label
from arl.reward.math.extraction import MAX_ANSWER, extract_answer, gold_answer, has_form
from arl.reward.math.forms import Form, Unreadable
from arl.reward.math.latex import read
from arl.reward.math.values import exact
from arl.types import Problem, Response

__all__ = ["canonical", "equal", "extract_answer", "gold_answer", "score", "vote"]

SECONDS = 1.0  # for the algebra of one verification


def score(problem: Problem, response: Response) -> dict[str, float]:
    r"""Return whether the answer of a response is `correct`, and whether it is given in the expected `format`.

    >>> score(Problem("1+1?", answer="2"), Response("That is \\boxed{2}."))
    {'correct': 1.0, 'format': 1.0}

    Raises:
        TimeoutError: no verdict within SECONDS.
    """
    answer = extract_answer(response.text, response.truncated)
    gold = gold_answer(problem.answer)
    return {
        "correct": float(answer is not None and equal(gold, answer)),
        "format": float(has_form(response.text, response.truncated)),
    }


def equal(gold: str, answer: str) -> bool:
    r"""Tell whether an answer is the gold one in another usual form; see docs/rewards.md.

    >>> equal("\\frac{1}{2}", "0.5"), equal("[0,1)", "0 \\le x < 1"), equal("(1,2)", "(2,1)")
    (True, True, False)

    Raises:
        TimeoutError: no verdict within SECONDS.
        RuntimeError: it takes algebra, and this is not the main thread of a process.
    """
    gold = gold.strip()
    answer = answer.strip()
    if max(len(gold), len(answer)) > MAX_ANSWER:
        return gold == answer
    return _equal(gold, answer)


@lru_cache(maxsize=4096)
def _equal(gold: str, answer: str) -> bool:
    verdict = compare_choices(gold, answer)
    if verdict is not None:
        return verdict
    ours = _read(gold)
    theirs = _read(without_label(answer))
    if ours is None or theirs is None:
        return False  # an empty answer equals nothing
    are_numbers = exact(ours) is not None and exact(theirs) is not None
    if are_numbers or "words" in (ours.kind, theirs.kind):
        return same_answer(ours, theirs)
    return run_within(SECONDS, lambda: same_answer(ours, theirs), repr(answer[:60]))


@lru_cache(maxsize=4096)
def _read(answer: str) -> Form | None:
    try:
        return read(answer)
    except Unreadable:
        return None


def canonical(answer: str) -> str:
    r"""Return one spelling for all answers that are equal without algebra, for majority votes.

    >>> canonical("$\\dfrac{2}{4}$"), canonical("x = 0.5"), canonical("\\{3, 1\\}")
    ('1/2', '1/2', '{1,3}')
    """
    if len(answer) > MAX_ANSWER:
        return answer.strip()
    choice = choice_of(answer)
    if choice is not None:
        return choice
    node = _read(answer.strip())
    return spell_answer(node) if node is not None else ""


def vote(response: Response) -> str:
    r"""Return the answer of a response in the one spelling of its equals; empty: it has none.

    >>> vote(Response("It is $\\dfrac{2}{4}$.")), vote(Response("I do not know."))
    ('1/2', '')
    """
    answer = extract_answer(response.text, response.truncated)
    if answer is None:
        return ""
    return canonical(answer) or answer.strip()


REPEAT_SECONDS = 0.1  # the alarm rings again, because code in between may have swallowed it
Result = TypeVar("Result")


class _OutOfTime(BaseException):
    """Break off a computation. No `except Exception` of a library stops it."""


def run_within(seconds: float, function: Callable[[], Result], what: str) -> Result:
    """Call a function, and break it off when it has used so much time of the CPU.

    It is no time of the clock, so that a busy machine decides as an idle one does; for that, the pool has its deadline.

    Raises:
        TimeoutError: the time was over; names `what`.
        RuntimeError: called outside of the main thread of a process, where the alarm cannot be received.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("math is verified in the main thread of a process alone: its time limit is a signal")
    is_running = True

    def ring(signum: int, frame: FrameType | None) -> None:
        if is_running:
            raise _OutOfTime

    previous = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, REPEAT_SECONDS)
    try:
        return function()
    except _OutOfTime:
        raise TimeoutError(f"no verdict within {seconds:g} s on the answer {what}") from None
    finally:
        is_running = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
