r"""Grade answers to math problems: find the answer in the response, and compare it with the gold one.

    response ─► extraction ─► answer ─► latex (tokens, units) ─► compare ─► correct: 0 or 1
                                gold ─►          "            ─►    └─ values, within a second

docs/rewards.md says which answers count as equal. Nothing here imports torch.
"""

import re

from arl.reward.math.compare import LABEL, compare_choices, letters_of, same_answer, spell
from arl.reward.math.extraction import extract_answer, find_answer, gold_answer, read_list
from arl.reward.math.latex import read
from arl.reward.math.values import limit_time
from arl.types import Problem, Response

__all__ = ["canonical", "equal", "extract_answer", "gold_answer", "score", "unusable", "vote"]

MAX_GOLD_WORDS = 30
_PLAIN_NUMBER = re.compile(r"-?\d{1,99}")
_NO_VALUE = re.compile(r"""nan|null|n/a|<na>|\[\s*\]|\{\s*\}|\{\s*['"].*\}""", re.IGNORECASE | re.DOTALL)
_PROSE = re.compile(r"(?<!\\)\b[^\W\d_]{2,}")
_ESCAPED = re.compile(r"\\.", re.DOTALL)


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
    verdict = compare_choices(gold, answer)
    if verdict is not None:
        return verdict
    ours = read(LABEL.sub("", gold))
    theirs = read(LABEL.sub("", answer))
    if ours is None or theirs is None:
        return False  # an empty answer equals nothing
    limit_time()
    return same_answer(ours, theirs)


def unusable(answer: str) -> str:
    r"""Say why no response can be right where this is `problem.answer`; empty: one can.

    >>> unusable("12"), unusable('["$12$"]'), unusable(""), unusable('["2", "5"]')
    ('', '', 'it is empty', 'it is a list of 2 answers, and the grader compares one')
    """
    if _PLAIN_NUMBER.fullmatch(answer):
        return ""
    gold = gold_answer(answer)
    num_answers = len(read_list(answer))
    num_words = len(_PROSE.findall(gold))
    unescaped = _ESCAPED.sub("", gold)
    reasons = {
        f"it is a list of {num_answers} answers, and the grader compares one": num_answers > 1,
        "it is empty": not gold,
        "it is the mark of a missing value, or an object": _NO_VALUE.fullmatch(gold),
        f"it is a text of {num_words} words, which no final answer repeats": num_words > MAX_GOLD_WORDS,
        r"its braces do not match, so no \boxed{…} can hold it": unescaped.count("{") != unescaped.count("}"),
        "nothing in it can be read": read(LABEL.sub("", gold)) is None,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


score.unusable = unusable  # type: ignore[attr-defined]


def canonical(answer: str) -> str:
    r"""Return one spelling for all answers that are equal without algebra, for majority votes.

    An answer that takes too long to read keeps its own spelling.

    >>> canonical("$\\dfrac{2}{4}$"), canonical("x = 0.5"), canonical("\\{3, 1\\}")
    ('1/2', '1/2', '{1,3}')
    """
    try:
        limit_time()
        form = read(answer.strip())
        return letters_of(answer) or ("" if form is None else spell(form))
    except TimeoutError:
        return answer.strip()


def vote(response: Response) -> str:
    r"""Return the answer of a response in the one spelling of its equals; empty: it has none.

    >>> vote(Response("It is $\\dfrac{2}{4}$.")), vote(Response("I do not know."))
    ('1/2', '')
    """
    answer = extract_answer(response.text, response.truncated) or ""
    return canonical(answer) or answer.strip()
