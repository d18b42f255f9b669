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
from collections.abc import Iterable

from arl.reward.math.latex import MAX_CHARACTERS
from arl.reward.math.vocabulary import TABLES, one_of

_MAX_LINE = 200  # characters of an answer after `####`
_MAX_WORDS = 6  # of an answer without a number or a formula; a longer sentence names none
_MIN_SENTENCE = 4  # words; a number among fewer is no part of a sentence
_MAX_NESTING = 12  # braces in the braces of a box
_TAIL = 3000  # characters from the end that are searched where the answer is not marked

_IN_BRACES = r"(?:[^{}\\]|\\.)*+"  # what is escaped, as \{, closes nothing
for _ in range(_MAX_NESTING):
    _IN_BRACES = rf"(?:[^{{}}\\]|\\.|\{{{_IN_BRACES}\}})*+"
_BOX = re.compile(rf"(?s)\\(?:boxed|fbox)\s*(?:\{{({_IN_BRACES})\}}|(?<=\s)(-?[\w.]+))")
_GLUE = re.compile(r"\\text[a-z]*|\\q?quad|\\[()\[\],; ]|[${}\s]+")
_JOINS = re.compile(rf"\s*(?:[,;]?\s*\b{one_of('and')}\b|[,;、和或与])\s*")
_CORRECTS = re.compile(rf"[.!?]|\b{one_of('corrects')}\b|\\[A-Za-z]")
_EMPTY = {"", r"\text{}", "..."}
_LIST = re.compile(r"(?s)\s*\[\s*['\"].*['\"]\s*\]\s*")
_TAG = re.compile(r"(?si)<answer>((?:(?!<answer>).)*?)</answer>")
_HASHES = re.compile(  # no heading of Markdown, as `#### 2. Add them`; it starts as an answer
    r"(?m)^[ \t>*]*####[ \t*]*(?!\d{1,2}[.):]\s*[A-Za-z*])"
    rf"(?=[-+−$€£¥(\[{{\\.\d]|[A-Z][.)]?[ \t*]*$|[A-Za-z]\s*=)([^\n]{{0,{_MAX_LINE}}})$"
)
_STATED = re.compile(  # "answer to the question", and a heading above a last short line
    rf"""(?ix) (?:\b{one_of("answer")}s?\b|答案|答え|정답|الجواب) (?:\s+to\s[^.\n]{{1,80}}?)?
    (?: [\s*_]*(?:\b{one_of("is")}\b|[=:：是为は은])[\s*_:：]* | [ \t*_:]*\n[\s*_]*(?=[^\n]{{1,60}}\s*$) )
    (?:(?:therefore|thus|simply|indeed|exactly|approximately|about|equal\ to)\b[\s,:]*)?"""
)
_SENTENCE_END = re.compile(r"\.(?=\s|$)|\n|\.\*\*|[!。！](?=\s|$)|。|<\|")
_REASON = re.compile(rf"[,;，]?\s+{one_of('because')}\b.*|[,;]\s+(?:not|but|if|that)\b.*|(?<=\S)\s*\([A-Za-z -]+\)$")
_NOT_PROSE = re.compile(r"\bnot\b|n't\b|[=\\<>]")

_UNSPACED = re.compile(r"[\u3040-\ud7ff]")  # letters of scripts that put none between words
_EMPHASIS = re.compile(r"(?<![\w\\])[*`]{1,3}(?=\S)|(?<=[^\s\\])[*`]{1,3}(?![\w-])")  # of Markdown

_MATH = re.compile(
    r"(?s)\$\$(.+?)\$\$|(?<![\\\d])\$(?:(?=\S)([^$\n]*[^$\s])|\s([^$]+)\s)\$(?!\d)|\\\((.+?)\\\)|\\\[(.+?)\\\]"
)
_NO_PROSE = f"(?:{one_of('functions')}|pi|mod|choose|and|or|{'|'.join(TABLES['scales'])})(?![A-Za-z])"
_LISTED = r"[^.\n]{0,30}?\s(?:and|or)\s[-\d$]"
_PROSE = re.compile(  # what stands between the formulas of a text; a word that is glued to a digit is a part of one
    rf"""(?xm) (?P<macro> \\[A-Za-z]+ (?:\s*\{{{_IN_BRACES}\}})+ )
    | (?<![\\A-Za-z\d]) (?!{_NO_PROSE}) [A-Za-z]{{2,}} (?:['’][a-z]+|\^\{{?\d\}}?)? (?:\s[-–—]\s)?
    | (?![A-Za-z²³¹⁰⁴-⁹¼-¾⅐-⅞Ͱ-Ͽ]) [^\W\d_]
    | \b(?:and|or)\b (?!\s[-\d$]) | \b[aAI]\s(?=[\d$])
    | (?<=\d) (?: \s(?=\(|[a-wyzA-Z](?![A-Za-z\d^(])) | \s?[mghs](?:\^\{{?\d\}}?|[²³])?(?![A-Za-z\d^(]) )
    | [.;?](?=\s|$) | [。，、；？！] | ,(?=\s)(?![^()\[\]\n]*[)\]]|[^{{}}\n]*\}}|\s[-\d$]{_LISTED}|\s(?:and|or)\s[-\d$])
    | </?[a-z_]+> | ^\s*(?:[-*>•]|\d\))\s"""
)
_PIECE = re.compile(r"[ \t:,=&)}]*+(?:(?:[*/+x×÷]|and|or|choose)\s(?=[$\d]))?+([^\n]*\d[^\n]*)(?<!:)(?<!: )(?=\n|$)")
_DIGIT = re.compile(r"\d")

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
    text = _EMPHASIS.sub("", answer if answer.strip() else text)
    marks = _marks(text, truncated)
    if marks:
        return max(marks)[1], True
    whole_lines = text[: text.rfind("\n") + 1] if truncated else text
    stated = _stated(whole_lines[-_TAIL:])
    if stated is not None or truncated or r"\boxed" in text:
        return stated, False
    is_whole = re.fullmatch(r"\(?[A-J](?:[).:].{0,99})?|[^\W\d_]+[.!]?", text.strip())
    return text.strip() if is_whole else _last_expression(text[-_TAIL:]), False


def gold_answer(answer: str) -> str:
    r"""Return the answer of a problem, where a data set gives a whole solution: after `####`, or in the last \boxed.

    A list of one text, as `["$12$"]`, is that text.
    """
    if len(values := read_list(answer)) == 1:
        answer = values[0]
    if "####" in answer:
        return answer.rpartition("####")[2].strip()
    boxes = last_box(answer)
    return boxes[0][1] if boxes else answer.strip()


def read_list(answer: str) -> list[str]:
    """Return the texts of a list, as JSON or Python writes it; empty: the answer is no such list."""
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return [*map(str, ast.literal_eval(answer.strip()))] if _LIST.fullmatch(answer) else []
    return []


# ---- marked answers


def _marks(text: str, truncated: bool) -> list[Mark]:
    """Return the answers that are marked; of boxes the last."""
    hashes = [(match.start(), match[1].strip(" \t*")) for match in _HASHES.finditer(text)]
    if truncated and hashes and "\n" not in text[hashes[-1][0] :]:
        hashes.pop()  # it may have been cut
    tags = [(match.start(), match[1].strip()) for match in _TAG.finditer(text)]
    marks = [mark for mark in (*last_box(text), *hashes, *tags) if 0 < len(mark[1]) <= MAX_CHARACTERS]
    return [(at, _stated(content) or _only_number(content)) for at, content in marks]


def last_box(text: str) -> list[Mark]:
    r"""Return the last closed and filled \boxed{…}, or nothing. Reads the text once.

    Boxes of one sentence that "and", "or" or a comma joins are one answer: `x=\boxed{2}` or `x=\boxed{5}` is "2, 5".
    """
    boxes = [box for box in _BOX.finditer(text) if box[box.lastindex or 0].strip(" .,$~\n") not in _EMPTY]
    return _joined(text, boxes, are_boxes=True)[-1:]


def _joined(text: str, found: Iterable[re.Match[str]], are_boxes: bool = False) -> list[Mark]:
    """Return the contents of boxes or formulas. Neighbors that a word such as "and" joins are one list.

    Words between boxes are allowed, unless they say that the later box corrects the other.
    """
    marks: list[Mark] = []
    end = 0
    for match in found:
        between = _GLUE.sub(" ", text[end : match.start()])
        joins = _JOINS.search(between) if are_boxes else _JOINS.fullmatch(between)
        is_beside = are_boxes and not between.strip() and "\n" not in text[end : match.start()]
        is_far = len(between) > _MAX_LINE or "\n\n" in text[end : match.start()] or _CORRECTS.search(between)
        at, before = marks.pop() if marks and (joins or is_beside) and not is_far else (match.start(), "")
        content = str(match[match.lastindex or 0]).strip()
        marks.append((at, f"{before}, {content}" if before and before != content else content))
        end = match.end()
    return marks


# ---- answers that are not marked


def _stated(text: str) -> str | None:
    """Return what follows the last "answer is"."""
    for match in reversed(list(_STATED.finditer(text))):
        rest = text[match.end() :].lstrip(" *_\n}")
        formulas = _joined(rest, _MATH.finditer(rest))
        if _MATH.match(rest):
            return formulas[0][1]
        sentence = _SENTENCE_END.split(rest, maxsplit=1)[0].strip(" *_`\"'")
        is_short = len(sentence.split()) <= _MAX_WORDS
        if sentence and (is_short or re.search(r"[\d\\$=]|^\(?[A-J]\b", sentence)):
            clause = _REASON.sub("", sentence).rpartition(" is ")[2].strip()
            return _only_number(clause)
    return None


def _only_number(clause: str) -> str:
    """Return the number or formula of a clause that has one: "she has 18 eggs"; else the clause."""
    formulas = _joined(clause, _MATH.finditer(clause))
    if len(formulas) == 1:
        return formulas[0][1]
    is_prose = len(clause.split()) >= _MIN_SENTENCE or _UNSPACED.search(clause)
    if not is_prose or _NOT_PROSE.search(clause):
        return clause
    numbers = _numbers(clause)
    return numbers[0][1] if len(numbers) == 1 else clause


def _last_expression(text: str) -> str | None:
    """Return the last formula or number as a whole. A formula without a digit counts only where there is no digit."""
    formulas = _joined(text, _MATH.finditer(text))
    outside = _MATH.sub(_blank, text)
    found = [*formulas, *_numbers(outside)]
    return max(found, key=lambda mark: (bool(_DIGIT.search(mark[1])), *mark), default=(0, None))[1]


def _numbers(text: str) -> list[Mark]:
    """Return what has a digit and stands between words, as a whole; "Step 3:" has no number."""
    return [(piece.start(1), piece[1].rstrip(" /,(&-")) for piece in _PIECE.finditer(_PROSE.sub(_blank, text))]


def _blank(match: re.Match[str]) -> str:
    return match[0] if match.groupdict().get("macro") else "\n" * len(match[0])
