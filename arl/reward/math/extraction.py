r"""Find the final answer in a response.

    1. the last closed and filled \boxed{…}, line `#### …`, or <answer>…</answer>: whichever comes last
    2. the last "the answer is …" or "Answer: …"
    3. the last formula or number, if no \boxed was begun

A response that the token budget cut off may have been cut in the middle of its answer. There only 1. counts, and of
the rest what stands before its last line break.
"""

import ast
import contextlib
import re

MAX_ANSWER = 4000  # characters; what is longer is no answer, and is only compared as it stands
_MAX_LINE = 200  # characters of an answer after `####`
_MAX_WORDS = 6  # of an answer without a number or a formula; a longer sentence names none
_MIN_SENTENCE = 4  # words; a number among fewer is no part of a sentence
_MAX_NESTING = 12  # braces in the braces of a box
_TAIL = 3000  # characters from the end that are searched where the answer is not marked

_IN_BRACES = r"(?:[^{}\\]|\\.)*+"  # what is escaped, as \{, closes nothing
for _ in range(_MAX_NESTING):
    _IN_BRACES = rf"(?:[^{{}}\\]|\\.|\{{{_IN_BRACES}\}})*+"
_BOX = re.compile(rf"\\(?:boxed|fbox)\s*\{{({_IN_BRACES})\}}", re.DOTALL)
_BARE_BOX = re.compile(r"\\boxed\s+(-?[\w.]+)")
_BETWEEN_BOXES = re.compile(r"[$\s]*(?:[,;]|,?\s*(?:and|or))[$\s]*(?:[A-Za-z]\w*\s*=\s*)?")  # of one answer
_EMPTY = {"", r"\text{}", "..."}
_LIST = re.compile(r"\s*\[\s*['\"].*['\"]\s*\]\s*$", re.DOTALL)
_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_HASHES = re.compile(
    rf"""
    ^[ \t>*]*\#\#\#\#[ \t*]*
    (?!\d{{1,2}}[.):]\s*[A-Za-z*])                          # a heading of Markdown, such as `#### 2. Add them`
    (?=[-+−$€£¥(\[{{\\.\d]|[A-Z][.)]?[ \t*]*$|[A-Za-z]\s*=)  # it starts as an answer
    ([^\n]{{0,{_MAX_LINE}}})$
    """,
    re.MULTILINE | re.VERBOSE,
)
_STATED = re.compile(
    r"""
    \b(?:answer|option|choice)s?\b(?:\s+to\s[^.\n]{1,80}?)?  # "answer to the question"
    [\s*_]*(?:\bis\b|\bare\b|\bequals\b|=|:)[\s*_:]*
    (?:(?:therefore|thus|simply|indeed|exactly|approximately|about|equal\ to)\b[\s,:]*)?
    """,
    re.IGNORECASE | re.VERBOSE,
)
_SENTENCE_END = re.compile(r"\.(?=\s|$)|\n|\.\*\*|!(?=\s|$)|<\|")
_REASON = re.compile(
    r"[,;]?\s+(?:because|since|which|where|so|as|when)\b.*|[,;]\s+(?:not|but|if|that)\b.*|(?<=\S)\s*\([A-Za-z -]+\)$"
)
_FORMULA_SIGN = re.compile(r"[\d\\$=]")
_NOT_PROSE = re.compile(r"\bnot\b|n't\b|[=\\<>]")

_MATH = re.compile(r"\$\$(.+?)\$\$|(?<![\\\d])\$([^$\n]+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_COORDINATE = r"[-−]?[\w./\\{}^]+"
_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d))"  # 1,234 or 1234 or 1234.5 or .5
_NUMBER_BEGINS = r"(?<![A-Za-z\d_.,/^{])"
_NUMBER = re.compile(
    rf"""
    {_NUMBER_BEGINS} (?:[-−+](?=[\d.$€£]))? [$€£]?\s? {_DECIMAL}
    (?:\s\d+/\d+|/\d+|:\d+)?  # of 2 1/2, 3/4, 2:30
    (?:\s?\\?%)? (?:\^\\circ|°)?
    (?=(?:[kcm]?m|k?g|ft|lbs?|hrs?|mins?|h|s)?[²³]?(?![A-Za-z\d_^]|\.\d|,\d))  # letters of other scripts may follow
    """,
    re.VERBOSE,
)
_QUANTITIES = (
    _MATH,
    re.compile(rf"[(\[]\s*{_COORDINATE}(?:\s*,\s*{_COORDINATE})+\s*[)\]]"),
    re.compile(r"-?\d*\\[dt]?frac\{[^{}]*\}\{[^{}]*\}"),
    re.compile(rf"{_NUMBER_BEGINS}{_DECIMAL}(?:\s?(?:\\times|\\cdot|[×·*])\s?{_DECIMAL})*\^\{{?[-+]?\d+\}}?"),
    _NUMBER,
)
_DIGIT = re.compile(r"\d")
_OPERATOR_BEFORE = re.compile(r"(?:[+*/×÷^]|\\cdot|\\times)\s*$")

Mark = tuple[int, str]  # where in the response an answer begins that is marked as one, and what it is


def extract_answer(text: str, truncated: bool = False) -> str | None:
    r"""Return the final answer of a response as it is written there, or None if there is none.

    >>> extract_answer(r"First \boxed{3}. No: \boxed{\frac{1}{2}}, of 10.")
    '\\frac{1}{2}'
    >>> extract_answer("2 + 3 = 5, so she has 5 apples left.")
    '5'
    """
    return find_answer(text, truncated)[0]


def find_answer(text: str, truncated: bool) -> tuple[str | None, bool]:
    """Return the final answer of a response, and whether it is marked as one."""
    answer = text.rpartition("</think>")[2]
    text = answer if answer.strip() else text
    marks = _marks(text, truncated)
    if marks:
        return max(marks)[1], True
    whole_lines = text[: text.rfind("\n") + 1] if truncated else text
    stated = _stated(whole_lines[-_TAIL:])
    if stated is not None or truncated or r"\boxed" in text:
        return stated, False
    is_letter = re.fullmatch(r"\(?[A-J]\)?\.?", text.strip())
    return text.strip() if is_letter else _last_quantity(text[-_TAIL:]), False


def gold_answer(answer: str) -> str:
    r"""Return the answer of a problem, where a data set gives a whole solution: after `####`, or in the last \boxed.

    A list of one text, as `["$12$"]`, is that text.
    """
    values = read_list(answer)
    if len(values) == 1:
        answer = values[0]
    if "####" in answer:
        return answer.rpartition("####")[2].strip()
    boxes = last_box(answer)
    return boxes[0][1] if boxes else answer.strip()


def read_list(answer: str) -> list[str]:
    """Return the texts of a list, as JSON or Python writes it; empty: the answer is no such list."""
    if _LIST.match(answer):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            values = ast.literal_eval(answer.strip())
            return [str(value) for value in values]
    return []


# ---- marked answers


def _marks(text: str, truncated: bool) -> list[Mark]:
    """Return the answers that are marked; of boxes the last."""
    hashes = [(match.start(), match[1].strip(" \t*")) for match in _HASHES.finditer(text)]
    if truncated and hashes and "\n" not in text[hashes[-1][0] :]:
        hashes.pop()  # it may have been cut
    tags = [(match.start(), match[1].strip()) for match in _TAG.finditer(text)]
    return [mark for mark in (*last_box(text), *hashes, *tags) if 0 < len(mark[1]) <= MAX_ANSWER]


def last_box(text: str) -> list[Mark]:
    r"""Return the last closed and filled \boxed{…}, or nothing. Reads the text once.

    Boxes that only "and", "or" or a comma separates are one answer: `x=\boxed{2}` or `x=\boxed{5}` is "2, 5".
    """
    boxes = [box for box in _BOX.finditer(text) if box[1].strip(" .,$~\n") not in _EMPTY]
    if not boxes:
        return [(box.start(), box[1]) for box in _BARE_BOX.finditer(text)][-1:]
    last = boxes.pop()
    content = last[1].strip()
    while boxes:
        between = text[boxes[-1].end() : last.start()]
        if len(between) > _MAX_LINE or not _BETWEEN_BOXES.fullmatch(between):
            break
        last = boxes.pop()
        content = f"{last[1].strip()}, {content}"
    return [(last.start(), content)]


# ---- answers that are not marked


def _stated(text: str) -> str | None:
    """Return what follows the last "answer is"."""
    for match in reversed(list(_STATED.finditer(text))):
        rest = text[match.end() :].lstrip(" *_\n")
        formula = _MATH.match(rest)
        if formula:
            return _inside(formula)
        sentence = _SENTENCE_END.split(rest, maxsplit=1)[0].strip(" *_`\"'")
        is_short = len(sentence.split()) <= _MAX_WORDS
        if sentence and (is_short or _FORMULA_SIGN.search(sentence)):
            return _narrowed(sentence)
    return None


def _narrowed(sentence: str) -> str:
    """Leave out of a sentence what is no answer: "18, because …", "that she has 18 eggs", "12 (twelve)"."""
    clause = _REASON.sub("", sentence.rpartition(" is ")[2]).strip()
    formulas = list(_MATH.finditer(clause))
    if len(formulas) == 1:
        return _inside(formulas[0])
    if len(clause.split()) < _MIN_SENTENCE or _NOT_PROSE.search(clause):
        return clause
    numbers = [match[0].strip() for match in _NUMBER.finditer(clause) if match[0].strip()]
    return numbers[0] if len(numbers) == 1 else clause


def _last_quantity(text: str) -> str | None:
    """Return the last formula with a digit, or the last number, whichever ends later; else the last formula."""
    found = [match for pattern in _QUANTITIES for match in pattern.finditer(text)]
    quantities = [match for match in found if match.re is _MATH or _DIGIT.search(match[0])]
    if not quantities:
        return None
    last = max(quantities, key=lambda match: (bool(_DIGIT.search(match[0])), match.end(), len(match[0])))
    if _OPERATOR_BEFORE.search(text, max(0, last.start() - 20), last.start()):
        return None  # the last part of a computation without a result
    return _inside(last) if last.re is _MATH else last[0].strip()


def _inside(formula: re.Match[str]) -> str:
    """Return a formula without its delimiters."""
    return str(formula[formula.lastindex or 0]).strip()
