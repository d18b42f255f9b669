r"""Find the final answer in a response.

    1. the last closed and filled \boxed{…}, or the last line `#### …`: whichever comes later
    2. the last "the answer is …" or "Answer: …"
    3. the last formula or number, if no \boxed was begun

A response that the token budget cut off may have been cut in the middle of its answer. There only 1. counts, and of
the rest what stands before its last line break.
"""

import re
from typing import NamedTuple

LONGEST_ANSWER = 4000  # characters; what is longer is no answer, and is only compared as it stands

_BOX_PARTS = re.compile(r"\\(?:boxed|fbox)\s*\{|\\(?:[{}]|\\(?!boxed))|[{}]")
_BARE_BOX = re.compile(r"\\boxed\s+(-?[\w.]+)")
_HASHES = re.compile(r"^[ \t>*]*####[ \t]*([^\n]*)$", re.MULTILINE)
_HEADING = re.compile(r"\d{1,2}[.):]\s*[A-Za-z*]")
_STARTS_AS_ANSWER = re.compile(r"[-+−$€£¥(\[{\\.\d]|[A-Z][.)]?$|[A-Za-z]\s*=")
_STATED = re.compile(
    r"\b(?:answer|option|choice)s?\b(?:\s+to\s[^.\n]{1,80}?)?[\s*_]*(?:\bis\b|\bare\b|\bequals\b|=|:)[\s*_:]*"
    r"(?:(?:therefore|thus|simply|indeed|exactly|approximately|about|equal to)\b[\s,:]*)?",
    re.IGNORECASE,
)
_MATH = re.compile(r"\$\$(.+?)\$\$|(?<![\\\d])\$([^$\n]+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_SENTENCE_END = re.compile(r"\.(?=\s|$)|\n|\.\*\*|!(?=\s|$)|<\|")
_NUMBER = re.compile(
    r"(?<![\w.,/^{])(?:[-−+](?=[\d.$€£]))?[$€£]?\s?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d))"
    r"(?:\s\d+/\d+|/\d+|:\d+)?(?:\s?\\?%)?(?:\^\\circ|°)?"
    r"(?=(?:[kcm]?m|k?g|ft|lbs?|hrs?|mins?|h|s)?[²³]?(?![\w^]|\.\d|,\d))"
)
_FRACTION = re.compile(r"-?\d*\\[dt]?frac\{[^{}]*\}\{[^{}]*\}")
_TUPLE = re.compile(r"[(\[]\s*[-−]?[\w./\\{}^]+(?:\s*,\s*[-−]?[\w./\\{}^]+)+\s*[)\]]")
_REASON = re.compile(r"[,;]?\s+(?:because|since|which|where|so|as|when)\b|[,;]\s+(?:not|but|if|that)\b")
_MOST_WORDS = 6  # of an answer without a number or a formula; a longer sentence names none
_EMPTY = {"", r"\text{}", "..."}
_OPERATOR_BEFORE = re.compile(r"[+*/×÷^]\s*$|\\(?:cdot|times)\s*$")
_TAIL = 3000  # characters from the end that are searched where the answer is not marked


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
    return _last_quantity(text[-_TAIL:])


def has_form(text: str, truncated: bool = False) -> bool:
    r"""Tell whether the answer is given in an expected form: a closed and filled \boxed{…}, or a line `#### …`."""
    return _marked(_after_thinking(text), truncated) is not None


def gold_answer(answer: str) -> str:
    r"""Return the answer of a problem, where a data set gives a whole solution: after `####`, or in the last \boxed."""
    if "####" in answer:
        return answer.rpartition("####")[2].replace(",", "").strip()
    box = last_box(answer) if r"\boxed" in answer else None
    return (box[1] if box else answer).strip()


class _Box(NamedTuple):
    """Hold where the content of a brace begins, and how it is nested."""

    start: int
    is_box: bool = True
    is_first: bool = False  # only spaces are between the box around it and this one
    end: int = 0  # of its content
    reach: int = 0  # end of the content of the outermost box that holds only this one


def last_box(text: str) -> tuple[int, str] | None:
    r"""Return where the last closed and filled \boxed{…} begins, and what is in it. Reads the text once.

    Of \boxed{\boxed{5}} it is the inner one.
    """
    opened: list[_Box] = []
    last: _Box | None = None
    for match in _BOX_PARTS.finditer(text):
        token = match[0]
        if token == "}" and opened:
            box = opened.pop()
            if not box.is_box or _is_blank(text, box.start, match.start()):
                continue
            is_around = last and last.is_first and last.start > box.start
            if last and is_around and not text[last.reach + 1 : match.start()].strip():
                last = last._replace(is_first=box.is_first, reach=match.start())
            else:
                last = box._replace(end=match.start(), reach=match.start())
        elif token == "{":
            opened.append(_Box(match.end(), is_box=False))
        elif token[-1] == "{" and len(token) > 2:
            around = opened[-1] if opened else None
            is_first = around is not None and around.is_box and _is_blank(text, around.start, match.start())
            opened.append(_Box(match.end(), is_first=is_first))
    if last is not None:
        return last.start, text[last.start : last.end].strip()
    bare = list(_BARE_BOX.finditer(text))
    return (bare[-1].start(), bare[-1][1]) if bare else None


def _is_blank(text: str, start: int, end: int) -> bool:
    """Tell whether nothing is said between two places. It looks at short spans alone, so that all are quick."""
    return end - start < 40 and text[start:end].strip(" .,$~\n") in _EMPTY


def _after_thinking(text: str) -> str:
    """Return what follows the thoughts of a thinking model, if anything does."""
    answer = text.rpartition("</think>")[2]
    return answer if answer.strip() else text


def _marked(text: str, truncated: bool) -> str | None:
    r"""Return the content of the last \boxed or `####`, whichever comes later."""
    box = last_box(text)
    hashes = _last_hashes(text, truncated)
    if box and (hashes is None or box[0] > hashes[0]):
        return box[1] if len(box[1]) <= LONGEST_ANSWER else None
    return hashes[1] if hashes else None


def _last_hashes(text: str, truncated: bool) -> tuple[int, str] | None:
    """Return the last `#### …` that is an answer, and no heading of Markdown such as `#### 2. Add them`."""
    last = None
    for match in _HASHES.finditer(text):
        content = match[1].strip().strip("*").strip()
        is_cut = truncated and match.end() == len(text)
        is_answer = _STARTS_AS_ANSWER.match(content) and not _HEADING.match(content) and len(content) < 200
        if is_answer and not is_cut:
            last = (match.start(), content)
    return last


def _stated(text: str) -> str | None:
    """Return what follows the last "answer is"."""
    for match in reversed(list(_STATED.finditer(text))):
        rest = text[match.end() :].lstrip(" *_\n")
        math = _MATH.match(rest)
        if math:
            return next(group for group in math.groups() if group is not None).strip()
        content = _SENTENCE_END.split(rest, maxsplit=1)[0].strip(" *_`\"'")
        content = content.removesuffix("$") if content.count("$") == 1 and not content.startswith("$") else content
        names_answer = len(content.split()) <= _MOST_WORDS or re.search(r"[\d\\$=]", content)
        if content and names_answer:
            return _narrowed(content)
    return None


def _narrowed(content: str) -> str:
    """Leave out of a sentence what is no answer: "18, because …", "that she has 18 eggs", "12 (twelve)"."""
    content = _REASON.split(content.rpartition(" is ")[2], maxsplit=1)[0].strip()
    content = re.sub(r"(?<=\S)\s*\([A-Za-z -]+\)$", "", content)
    formulas = list(_MATH.finditer(content))
    if len(formulas) == 1:
        return next(group for group in formulas[0].groups() if group is not None).strip()
    numbers = [match[0].strip() for match in _NUMBER.finditer(content) if match[0].strip()]
    is_sentence = len(content.split()) > 3 and not re.search(r"\bnot\b|n't\b|[=\\<>]", content)
    return numbers[0] if len(numbers) == 1 and is_sentence else content


def _last_quantity(text: str) -> str | None:
    """Return the last formula with a digit, or the last number, whichever ends later."""
    formulas = list(_MATH.finditer(text))
    matches = [*formulas, *_TUPLE.finditer(text), *_FRACTION.finditer(text), *_NUMBER.finditer(text)]
    candidates = [match for match in matches if any(c.isdecimal() for c in match[0])] or formulas
    if not candidates:
        return None
    last = max(candidates, key=lambda match: (match.end(), match.end() - match.start()))
    if _OPERATOR_BEFORE.search(text[max(0, last.start() - 20) : last.start()]):
        return None  # the last part of a computation without a result
    groups = [group for group in last.groups() if group is not None] if last.re is _MATH else []
    return (groups[0] if groups else last[0]).strip()
