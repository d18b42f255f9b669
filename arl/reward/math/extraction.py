r"""Find the final answer in a response.

    1. the last closed and filled \boxed{…}, line `#### …`, or <answer>…</answer>: whichever comes last
    2. the last "the answer is …" or "Answer: …"
    3. the last formula or number, if no \boxed was begun

A response that the token budget cut off may have been cut in the middle of its answer. There only 1. counts, and of
the rest what stands before its last line break.
"""

import re
from functools import lru_cache

MAX_ANSWER = 4000  # characters; what is longer is no answer, and is only compared as it stands
_MAX_LINE = 200  # characters of an answer after `####`
_MAX_WORDS = 6  # of an answer without a number or a formula; a longer sentence names none
_MIN_SENTENCE = 4  # words; a number among fewer is no part of a sentence
_TAIL = 3000  # characters from the end that are searched where the answer is not marked
_OPERATOR_REACH = 20  # characters before a number that are searched for an operator

# A box, and every brace that may close it. The second alternative skips what is escaped: \{ and \\.
_BOX_PARTS = re.compile(r"\\(?:boxed|fbox)\s*\{|\\(?:[{}]|\\(?!boxed))|[{}]")
_BARE_BOX = re.compile(r"\\boxed\s+(-?[\w.]+)")
_BETWEEN_BOXES = re.compile(r"[$\s]*(?:[,;]|,?\s*(?:and|or))[$\s]*(?:[A-Za-z]\w*\s*=\s*)?")  # of one answer
_EMPTY = {"", r"\text{}", "..."}
_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL)
_HASHES = re.compile(r"^[ \t>*]*####[ \t]*([^\n]*)$", re.MULTILINE)
_HEADING = re.compile(r"\d{1,2}[.):]\s*[A-Za-z*]")  # of Markdown, such as `#### 2. Add them`
_STARTS_AS_ANSWER = re.compile(r"[-+−$€£¥(\[{\\.\d]|[A-Z][.)]?$|[A-Za-z]\s*=")
_LONE_LETTER = re.compile(r"\(?[A-J]\)?\.?")

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
_FRACTION = re.compile(r"-?\d*\\[dt]?frac\{[^{}]*\}\{[^{}]*\}")
_COORDINATE = r"[-−]?[\w./\\{}^]+"
_TUPLE = re.compile(rf"[(\[]\s*{_COORDINATE}(?:\s*,\s*{_COORDINATE})+\s*[)\]]")
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
_POWER = re.compile(rf"{_NUMBER_BEGINS}{_DECIMAL}(?:\s?(?:\\times|\\cdot|[×·*])\s?{_DECIMAL})*\^\{{?[-+]?\d+\}}?")
_OPERATOR_BEFORE = re.compile(r"[+*/×÷^]\s*$|\\(?:cdot|times)\s*$")

Mark = tuple[int, str]  # where in the response an answer begins that is marked as one, and what it is


def extract_answer(text: str, truncated: bool = False) -> str | None:
    r"""Return the final answer of a response as it is written there, or None if there is none.

    >>> extract_answer(r"First \boxed{3}. No: \boxed{\frac{1}{2}}, of 10.")
    '\\frac{1}{2}'
    >>> extract_answer("2 + 3 = 5, so she has 5 apples left.")
    '5'
    """
    text = _after_thinking(text)
    marked = _marked(text, truncated)
    if marked is not None:
        return marked
    whole_lines = text[: text.rfind("\n") + 1] if truncated else text
    stated = _stated(whole_lines[-_TAIL:])
    if stated is not None or truncated or r"\boxed" in text:
        return stated
    is_letter = _LONE_LETTER.fullmatch(text.strip())
    return text.strip() if is_letter else _last_quantity(text[-_TAIL:])


def has_form(text: str, truncated: bool = False) -> bool:
    r"""Tell whether the answer is marked: by a closed and filled \boxed{…}, a line `#### …`, or <answer>…</answer>."""
    return _marked(_after_thinking(text), truncated) is not None


def gold_answer(answer: str) -> str:
    r"""Return the answer of a problem, where a data set gives a whole solution: after `####`, or in the last \boxed."""
    if "####" in answer:
        return answer.rpartition("####")[2].strip()
    boxes = last_box(answer)
    return boxes[0][1] if boxes else answer.strip()


def _after_thinking(text: str) -> str:
    """Return what follows the thoughts of a thinking model, if anything does."""
    answer = text.rpartition("</think>")[2]
    return answer if answer.strip() else text


@lru_cache(maxsize=1)  # it is asked for the answer and for the format
def _marked(text: str, truncated: bool) -> str | None:
    tags = [(match.start(), match[1].strip()) for match in _TAG.finditer(text)]
    marks = [mark for mark in (*last_box(text), *_hashes(text, truncated), *tags) if mark[1]]
    answer = max(marks)[1] if marks else None
    return answer if answer is None or len(answer) <= MAX_ANSWER else None


def last_box(text: str) -> list[Mark]:
    r"""Return the last closed and filled \boxed{…}, or nothing. Reads the text once.

    Boxes that only "and", "or" or a comma separates are one answer: `x=\boxed{2}` or `x=\boxed{5}` is "2, 5".
    """
    boxes = [box for box in _outer_boxes(text) if text[box[0] : box[1]].strip(" .,$~\n") not in _EMPTY]
    if not boxes:
        return [(match.start(), match[1]) for match in _BARE_BOX.finditer(text)][-1:]
    start, end = boxes.pop()
    content = text[start:end].strip()
    while boxes:
        between = text[boxes[-1][1] + 1 : start].rpartition("\\")[0]
        if len(between) > _MAX_LINE or not _BETWEEN_BOXES.fullmatch(between):
            break
        start, end = boxes.pop()
        content = f"{text[start:end].strip()}, {content}"
    return [(start, content)]


def _outer_boxes(text: str) -> list[tuple[int, int]]:
    """Return where the contents of closed boxes start and end, without boxes in boxes."""
    opened: list[tuple[int, bool]] = []
    closed: list[tuple[int, int]] = []
    for match in _BOX_PARTS.finditer(text):
        token = match[0]
        if token == "}" and opened:
            start, is_box = opened.pop()
            while is_box and closed and closed[-1][0] > start:
                closed.pop()
            if is_box:
                closed.append((start, match.start()))
        elif token.endswith("{") and token != r"\{":
            opened.append((match.end(), token != "{"))
    return closed


def _hashes(text: str, truncated: bool) -> list[Mark]:
    """Return the lines `#### …` that are answers."""
    found = []
    for match in _HASHES.finditer(text):
        content = match[1].strip(" \t*")
        is_cut = truncated and match.end() == len(text)
        is_answer = len(content) < _MAX_LINE and not _HEADING.match(content) and _STARTS_AS_ANSWER.match(content)
        if is_answer and not is_cut:
            found.append((match.start(), content))
    return found


def _stated(text: str) -> str | None:
    """Return what follows the last "answer is"."""
    for match in reversed(list(_STATED.finditer(text))):
        rest = text[match.end() :].lstrip(" *_\n")
        formula = _MATH.match(rest)
        if formula:
            return _inside(formula)
        sentence = _SENTENCE_END.split(rest, maxsplit=1)[0].strip(" *_`\"'")
        if sentence.count("$") == 1 and not sentence.startswith("$"):
            sentence = sentence.removesuffix("$")  # it closes a formula before the sentence
        is_short = len(sentence.split()) <= _MAX_WORDS
        if sentence and (is_short or _FORMULA_SIGN.search(sentence)):
            return _narrowed(sentence)
    return None


def _inside(formula: re.Match[str]) -> str:
    """Return a formula without its delimiters."""
    return str(formula[formula.lastindex or 0]).strip()


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
    """Return the last formula with a digit, or the last number, whichever ends later."""
    formulas = list(_MATH.finditer(text))
    found = [match for pattern in (_TUPLE, _FRACTION, _POWER, _NUMBER) for match in pattern.finditer(text)]
    with_digit = [match for match in (*formulas, *found) if any(map(str.isdecimal, match[0]))]
    candidates = with_digit or formulas
    if not candidates:
        return None
    last = max(candidates, key=lambda match: (match.end(), match.end() - match.start()))
    before = text[max(0, last.start() - _OPERATOR_REACH) : last.start()]
    if _OPERATOR_BEFORE.search(before):
        return None  # the last part of a computation without a result
    return _inside(last) if last.re is _MATH else last[0].strip()
