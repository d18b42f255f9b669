r"""Grade answers to math problems: find the answer in the response, and compare it with the gold one.

    response ─► extraction ─► answer ─► latex (tokens, units) ─► compare ─► correct: 0 or 1
                                gold ─►          "            ─►    └─ values, within a second

docs/rewards.md says which answers count as equal. Nothing here imports torch.
"""

from arl.reward.math.compare import LABEL, canonical_form, choice_of, compare_choices, same_answer
from arl.reward.math.extraction import MAX_ANSWER, extract_answer, find_answer, gold_answer
from arl.reward.math.forms import spell
from arl.reward.math.latex import read
from arl.reward.math.values import limit_time
from arl.types import Problem, Response

__all__ = ["canonical", "equal", "extract_answer", "gold_answer", "score", "vote"]


def score(problem: Problem, response: Response) -> dict[str, float]:
    r"""Return whether the answer of a response is `correct`, and whether it is given in the expected `format`.

    >>> score(Problem("1+1?", answer="2"), Response("That is \\boxed{2}."))
    {'correct': 1.0, 'format': 1.0}

    Raises:
        TimeoutError: no verdict within a second of the CPU.
    """
    answer, is_marked = find_answer(response.text, response.truncated)
    is_correct = answer is not None and equal(gold_answer(problem.answer), answer)
    return {"correct": float(is_correct), "format": float(is_marked)}


def equal(gold: str, answer: str) -> bool:
    r"""Tell whether an answer is the gold one in another usual form; see docs/rewards.md.

    >>> equal("\\frac{1}{2}", "0.5"), equal("[0,1)", "0 \\le x < 1"), equal("(1,2)", "(2,1)")
    (True, True, False)

    Raises:
        TimeoutError: no verdict within a second of the CPU.
    """
    if max(len(gold), len(answer)) > MAX_ANSWER:
        return gold.strip() == answer.strip()
    verdict = compare_choices(gold, answer)
    if verdict is not None:
        return verdict
    ours = read(LABEL.sub("", gold))
    theirs = read(LABEL.sub("", answer))
    if ours is None or theirs is None:
        return False  # an empty answer equals nothing
    limit_time()
    return same_answer(ours, theirs)


def canonical(answer: str) -> str:
    r"""Return one spelling for all answers that are equal without algebra, for majority votes.

    An answer that takes too long to read keeps its own spelling.

    >>> canonical("$\\dfrac{2}{4}$"), canonical("x = 0.5"), canonical("\\{3, 1\\}")
    ('1/2', '1/2', '{1,3}')
    """
    if len(answer) > MAX_ANSWER:
        return answer.strip()
    try:
        form = read(answer.strip())
        limit_time()
        return choice_of(answer) or ("" if form is None else spell(canonical_form(form)))
    except TimeoutError:
        return answer.strip()


def vote(response: Response) -> str:
    r"""Return the answer of a response in the one spelling of its equals; empty: it has none.

    >>> vote(Response("It is $\\dfrac{2}{4}$.")), vote(Response("I do not know."))
    ('1/2', '')
    """
    answer = extract_answer(response.text, response.truncated) or ""
    return canonical(answer) or answer.strip()
