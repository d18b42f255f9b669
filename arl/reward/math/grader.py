r"""Grade answers to math problems: find the answer in the response, and compare it with the gold one.

    response ─► extraction ─► answer ─► latex_cleaning ─► answer_forms ─► compare_forms ─► correct: 0 or 1
                                gold ─►       "        ─►      "       ─►     │
                                                                              └ what only algebra decides:
                                                                                algebra, within a second

docs/rewards.md says which answers count as equal. Nothing here imports torch, and the symbolic library is imported on
first use, or by `score.prepare` when a worker starts.
"""

from functools import lru_cache

from arl.reward.cpu_limit import run_within
from arl.reward.math.algebra import is_equal, prepare
from arl.reward.math.answer_forms import Collection, Form, Named, read_form
from arl.reward.math.compare_forms import CHOICE, compare
from arl.reward.math.exact_numbers import read_number
from arl.reward.math.extraction import LONGEST_ANSWER, extract_answer, gold_answer, has_form
from arl.reward.math.latex_cleaning import clean, words_of
from arl.types import Problem, Response

__all__ = ["canonical", "equal", "extract_answer", "score", "vote"]

LONGEST_BITS = 4000  # of a number that is spelled out; Python writes up to 4,300 digits
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


score.prepare = prepare  # type: ignore[attr-defined]  # a worker calls it when it starts


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
    if max(len(gold), len(answer)) > LONGEST_ANSWER:
        return gold == answer
    return _equal(gold, answer)


@lru_cache(maxsize=4096)
def _equal(gold: str, answer: str) -> bool:
    ours = _read(gold)
    theirs = _read(answer)
    if ours is None or theirs is None:
        return False  # nothing is left of it, and nothing equals nothing
    verdict = compare(ours, theirs, lambda one, other: True if one == other else None)
    if verdict is None:
        prepare()  # outside of the time limit
        verdict = run_within(SECONDS, lambda: compare(ours, theirs, is_equal), repr(answer[:60]))
    return verdict is True


@lru_cache(maxsize=4096)
def _read(answer: str) -> Form | None:
    text = clean(answer)
    return read_form(text) if text else None


def canonical(answer: str) -> str:
    r"""Return one spelling for all answers that are equal without algebra, for majority votes.

    >>> canonical("$\\dfrac{2}{4}$"), canonical("x = 0.5"), canonical("\\{3, 1\\}")
    ('1/2', '1/2', '{1,3}')
    """
    if len(answer) > LONGEST_ANSWER:
        return answer.strip()
    form = _read(answer.strip())
    return _spell(form) if form is not None else ""


def vote(response: Response) -> str:
    r"""Return the answer of a response in the one spelling of its equals; empty: it has none.

    >>> vote(Response("It is $\\dfrac{2}{4}$.")), vote(Response("I do not know."))
    ('1/2', '')
    """
    answer = extract_answer(response.text, response.truncated)
    if answer is None:
        return ""
    return canonical(answer) or answer.strip()


def _spell(form: Form) -> str:
    if isinstance(form, Named):
        return _spell(form.form)
    if isinstance(form, Collection):
        return _spell_collection(form)
    number = read_number(form.text)
    if number is not None:
        numerator, denominator = number.value.as_integer_ratio()
        if numerator.bit_length() + denominator.bit_length() < LONGEST_BITS:
            return str(number.value)
    choice = CHOICE.fullmatch(form.text)
    if choice:
        return choice[1]
    return words_of(form.text) or form.text


def _spell_collection(form: Collection) -> str:
    parts = [_spell(item) for item in form.items]
    if not form.has_order:
        return "{" + ",".join(sorted(parts)) + "}"
    spelled = ",".join(parts)
    if len(form.kind) == 2:
        return form.kind[0] + spelled + form.kind[1]
    return f"{form.kind}({spelled})"
