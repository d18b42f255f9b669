r"""Find the final answer in a response.

    1. the last closed and filled \boxed{…}, line `#### …`, or <answer>…</answer>: whichever comes last
    2. the last "the answer is …" or "Answer: …"
    3. the last formula or number, if no \boxed was begun

A response that the token budget cut off may have been cut in the middle of its answer. There only 1. counts, and of
the rest what stands before its last line break.
"""

import re
from functools import lru_cache
from typing import NamedTuple

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
_LONE_LETTER = re.compile(r"\(?[A-J]\)?\.?")

_HASHES = re.compile(r"^[ \t>*]*####[ \t]*([^\n]*)$", re.MULTILINE)
_HEADING = re.compile(r"\d{1,2}[.):]\s*[A-Za-z*]")
_STARTS_AS_ANSWER = re.compile(r"[-+−$€£¥(\[{\\.\d]|[A-Z][.)]?$|[A-Za-z]\s*=")

_SUBJECT = r"\b(?:answer|option|choice)s?\b(?:\s+to\s[^.\n]{1,80}?)?"  # "answer to the question"
_VERB = r"[\s*_]*(?:\bis\b|\bare\b|\bequals\b|=|:)[\s*_:]*"
_ADVERB = r"(?:(?:therefore|thus|simply|indeed|exactly|approximately|about|equal to)\b[\s,:]*)?"
_STATED = re.compile(_SUBJECT + _VERB + _ADVERB, re.IGNORECASE)
_SENTENCE_END = re.compile(r"\.(?=\s|$)|\n|\.\*\*|!(?=\s|$)|<\|")
_REASON = re.compile(r"[,;]?\s+(?:because|since|which|where|so|as|when)\b|[,;]\s+(?:not|but|if|that)\b")
_REMARK = re.compile(r"(?<=\S)\s*\([A-Za-z -]+\)$")
_FORMULA_SIGN = re.compile(r"[\d\\$=]")
_NOT_PROSE = re.compile(r"\bnot\b|n't\b|[=\\<>]")

_MATH = re.compile(r"\$\$(.+?)\$\$|(?<![\\\d])\$([^$\n]+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_FRACTION = re.compile(r"-?\d*\\[dt]?frac\{[^{}]*\}\{[^{}]*\}")
_COORDINATE = r"[-−]?[\w./\\{}^]+"
_TUPLE = re.compile(rf"[(\[]\s*{_COORDINATE}(?:\s*,\s*{_COORDINATE})+\s*[)\]]")

_SIGN = r"(?:[-−+](?=[\d.$€£]))?"
_CURRENCY = r"[$€£]?\s?"
_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d))"  # 1,234 or 1234 or 1234.5 or .5
_SECOND_PART = r"(?:\s\d+/\d+|/\d+|:\d+)?"  # of 2 1/2, 3/4, 2:30
_MARK = r"(?:\s?\\?%)?(?:\^\\circ|°)?"
_UNIT = r"(?:[kcm]?m|k?g|ft|lbs?|hrs?|mins?|h|s)?[²³]?"
_NUMBER_ENDS = rf"(?={_UNIT}(?![A-Za-z\d_^]|\.\d|,\d))"  # letters of scripts without spaces may follow
_NUMBER_BEGINS = r"(?<![A-Za-z\d_.,/^{])"
_NUMBER = re.compile(_NUMBER_BEGINS + _SIGN + _CURRENCY + _DECIMAL + _SECOND_PART + _MARK + _NUMBER_ENDS)
_POWER = re.compile(rf"{_NUMBER_BEGINS}{_DECIMAL}(?:\s?(?:\\times|\\cdot|[×·*])\s?{_DECIMAL})*\^\{{?[-+]?\d+\}}?")
_OPERATOR_BEFORE = re.compile(r"[+*/×÷^]\s*$|\\(?:cdot|times)\s*$")


class Marked(NamedTuple):
    """Hold an answer that is marked as one, and where in the response it begins."""

    start: int
    content: str


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
    if stated is not None:
        return stated
    if truncated or r"\boxed" in text:
        return None
    if _LONE_LETTER.fullmatch(text.strip()):
        return text.strip()
    return _last_quantity(text[-_TAIL:])


def has_form(text: str, truncated: bool = False) -> bool:
    r"""Tell whether the answer is marked: by a closed and filled \boxed{…}, a line `#### …`, or <answer>…</answer>."""
    return _marked(_after_thinking(text), truncated) is not None


def gold_answer(answer: str) -> str:
    r"""Return the answer of a problem, where a data set gives a whole solution: after `####`, or in the last \boxed."""
    if "####" in answer:
        return answer.rpartition("####")[2].strip()
    box = last_box(answer) if r"\boxed" in answer else None
    return answer.strip() if box is None else box.content


def last_box(text: str) -> Marked | None:
    r"""Return the last closed and filled \boxed{…}. Reads the text once.

    Boxes that only "and", "or" or a comma separates are one answer: `x=\boxed{2}` or `x=\boxed{5}` is "2, 5".
    """
    boxes = [box for box in _outer_boxes(text) if text[box[0] : box[1]].strip(" .,$~\n") not in _EMPTY]
    if not boxes:
        return _last_bare_box(text)
    start, end = boxes.pop()
    content = text[start:end].strip()
    while boxes:
        between = text[boxes[-1][1] + 1 : start].rpartition("\\")[0]
        if len(between) > _MAX_LINE or not _BETWEEN_BOXES.fullmatch(between):
            break
        start, end = boxes.pop()
        content = f"{text[start:end].strip()}, {content}"
    return Marked(start, content)


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


def _last_bare_box(text: str) -> Marked | None:
    r"""Return the last box without braces, as in `\boxed 2`."""
    boxes = list(_BARE_BOX.finditer(text))
    if not boxes:
        return None
    last = boxes[-1]
    return Marked(last.start(), last[1])


def _after_thinking(text: str) -> str:
    """Return what follows the thoughts of a thinking model, if anything does."""
    answer = text.rpartition("</think>")[2]
    return answer if answer.strip() else text


@lru_cache(maxsize=1)  # it is asked for the answer and for the format
def _marked(text: str, truncated: bool) -> str | None:
    r"""Return the content of the last \boxed, `####` or <answer>, whichever comes last."""
    marks = [last_box(text), _last_hashes(text, truncated), _last_tag(text)]
    found = [mark for mark in marks if mark is not None and mark.content]
    if not found:
        return None
    last = max(found, key=lambda mark: mark.start)
    return last.content if len(last.content) <= MAX_ANSWER else None


def _last_tag(text: str) -> Marked | None:
    """Return the content of the last <answer>…</answer>."""
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, end) if end >= 0 else -1
    if start < 0:
        return None
    return Marked(start, text[start:end].removeprefix("<answer>").strip())


def _last_hashes(text: str, truncated: bool) -> Marked | None:
    """Return the last `#### …` that is an answer, and no heading of Markdown such as `#### 2. Add them`."""
    last = None
    for match in _HASHES.finditer(text):
        content = match[1].strip().strip("*").strip()
        is_cut = truncated and match.end() == len(text)
        is_answer = len(content) < _MAX_LINE and not _HEADING.match(content) and _STARTS_AS_ANSWER.match(content)
        if is_answer and not is_cut:
            last = Marked(match.start(), content)
    return last


def _stated(text: str) -> str | None:
    """Return what follows the last "answer is"."""
    for match in reversed(list(_STATED.finditer(text))):
        rest = text[match.end() :].lstrip(" *_\n")
        formula = _MATH.match(rest)
        if formula:
            return _inside(formula)
        content = _first_sentence(rest)
        is_short = len(content.split()) <= _MAX_WORDS
        if content and (is_short or _FORMULA_SIGN.search(content)):
            return _narrowed(content)
    return None


def _inside(formula: re.Match[str]) -> str:
    """Return a formula without its delimiters. One of the groups has matched."""
    content = next(group for group in formula.groups() if group is not None)
    return content.strip()


def _first_sentence(text: str) -> str:
    """Return a text up to the end of its first sentence, without a dollar sign that closes a formula before it."""
    sentence = _SENTENCE_END.split(text, maxsplit=1)[0]
    sentence = sentence.strip(" *_`\"'")
    if sentence.count("$") == 1 and not sentence.startswith("$"):
        return sentence.removesuffix("$")
    return sentence


def _narrowed(content: str) -> str:
    """Leave out of a sentence what is no answer: "18, because …", "that she has 18 eggs", "12 (twelve)"."""
    clause = content.rpartition(" is ")[2]
    clause = _REASON.split(clause, maxsplit=1)[0]
    clause = _REMARK.sub("", clause.strip())
    formulas = list(_MATH.finditer(clause))
    if len(formulas) == 1:
        return _inside(formulas[0])
    is_long = len(clause.split()) >= _MIN_SENTENCE
    if not is_long or _NOT_PROSE.search(clause):
        return clause
    found = [match[0].strip() for match in _NUMBER.finditer(clause)]
    numbers = [number for number in found if number]
    return numbers[0] if len(numbers) == 1 else clause


def _last_quantity(text: str) -> str | None:
    """Return the last formula with a digit, or the last number, whichever ends later."""
    formulas = list(_MATH.finditer(text))
    quantities = list(formulas)
    for pattern in (_TUPLE, _FRACTION, _POWER, _NUMBER):
        quantities += pattern.finditer(text)
    with_digit = [match for match in quantities if any(character.isdecimal() for character in match[0])]
    candidates = with_digit or formulas
    if not candidates:
        return None
    last = max(candidates, key=lambda match: (match.end(), match.end() - match.start()))
    before = text[max(0, last.start() - _OPERATOR_REACH) : last.start()]
    if _OPERATOR_BEFORE.search(before):
        return None  # the last part of a computation without a result
    return _inside(last) if last.re is _MATH else last[0].strip()
