r"""Find the final answer in a response.

    1. the last closed and filled \boxed{…}, line `#### …`, or <answer>…</answer>: whichever comes last
    2. the last "the answer is …" or "Answer: …"
    3. the last formula or number, if no \boxed was begun

A response that the token budget cut off may have been cut in the middle of its answer. There only 1. counts, and of
the rest what stands before its last line break.
"""

import re

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
_FILLED = r"(?![\s.,$~]*(?:\\text\{\s*\}|\.\.\.)?[\s.,$~]*\})"
_BOX = rf"\\(?:boxed|fbox)\s*(?:\{{{_FILLED}({_IN_BRACES})\}}|(?<=\s)(-?[\w.]+))"
_JOIN = rf"(?:\b{one_of('and')}\b|[,;、和或与])"
_JOINS = rf"\s*(?:[,;]\s*)?{_JOIN}\s*"
_SPACING = r"(?:\\text[a-z]*|\\q?quad|\\[()\[\],; ]|[${} ])*+"
# What may stand between two boxes of one answer: no word says that the later one corrects the other.
_STEP = rf"(?:(?!\n\n|[.!?]|\b{one_of('corrects')}\b|\\(?!text|q?quad)[A-Za-z]).)"
_GAP = rf"(?:{_SPACING}|(?={_STEP}{{0,{_MAX_LINE}}}?{_JOIN}){_STEP}{{0,{_MAX_LINE}}}?)"
_BOXES = re.compile(rf"(?s){_BOX}(?:{_GAP}{_BOX})*")
_LIST = re.compile(r"(?s)\s*\[\s*['\"].*['\"]\s*\]\s*")
_ITEM = re.compile(r"(?s)(['\"])(.*?)\1\s*[,\]]")
_TAG = re.compile(r"(?si)<answer>((?:(?!<answer>).)*?)</answer>")
_HASHES = re.compile(  # no heading of Markdown, as `#### 2. Add them`; it starts as an answer
    r"(?m)^[ \t>*]*####[ \t*]*(?!\d{1,2}[.):]\s*[A-Za-z*])"
    rf"(?=[-+−$€£¥(\[{{\\.\d]|[A-Z][.)]?[ \t*]*$|[A-Za-z]\s*=)([^\n]{{0,{_MAX_LINE}}})$"
)
_STATED = re.compile(  # "answer to the question", and a heading above a last short line
    rf"""(?ix) \bI\s(?:would\s|will\s)?(?:choose|pick|select|go\swith)\s
        (?=(?:option\s)?\(?[A-J]\)?(?:[.!]?\s*$|,?\s(?:because|since)\b)) |
    (?:\b{one_of("answer")}s?\b|答案|答え|정답|الجواب) (?:\s+to\s[^.\n]{{1,80}}?)?
    (?: [\s*_]*(?:\b{one_of("is")}\b|[=:：是为は은])[\s*_:：]* | [ \t*_:]*\n[\s*_]*(?=[^\n]{{1,60}}\s*$) )
    (?:(?:therefore|thus|simply|indeed|exactly|approximately|about|equal\ to)\b[\s,:]*)?"""
)
_SENTENCE_END = re.compile(r"\.(?=\s|$)|\n|\.\*\*|[!。！](?=\s|$)|。|<\|")
_REASON = re.compile(rf"[,;，]?\s+\(?{one_of('because')}\b.*|[,;]\s+(?:not|but|if|that)\b.*|(?<=\S)\s*\([A-Za-z -]+\)$")
_NOT_PROSE = re.compile(r"\bnot\b|n't\b|[=\\<>]")

_UNSPACED = re.compile(r"[\u3040-\ud7ff]")  # letters of scripts that put none between words
_EMPHASIS = re.compile(r"(?<![\w\\])[*`]{1,3}(?=\S)|(?<=[^\s\\])[*`]{1,3}(?![\w-])")  # of Markdown

_FORMULA = r"\$\$(.+?)\$\$|(?<![\\\d])\$(?:(?=\S)([^$\n]*[^$\s])|\s([^$]+)\s)\$(?!\d)|\\\((.+?)\\\)|\\\[(.+?)\\\]"
_MATH = re.compile(_FORMULA, re.DOTALL)
_NO_PROSE = f"(?:{one_of('functions')}|pi|mod|choose|and|or|{'|'.join(TABLES['scales'])})(?![A-Za-z])"
_LISTED = r"[^.\n]{0,30}?\s(?:and|or)\s[-\d$]"
_PROSE = re.compile(  # what stands between the formulas of a text; a word that is glued to a digit is a part of one
    rf"""(?xms) (?P<formulas> (?:{_FORMULA}) (?:{_JOINS} (?:{_FORMULA}))* )
    | (?P<macro> \\[A-Za-z]+ (?:\s*\{{{_IN_BRACES}\}})+ )
    | (?<![\\A-Za-z\d]) (?!{_NO_PROSE}) [A-Za-z]{{2,}} (?:['’][a-z]+|\^\{{?\d\}}?)? (?:\s[-–—]\s)?
    | (?![A-Za-z²³¹⁰⁴-⁹¼-¾⅐-⅞Ͱ-Ͽ]) [^\W\d_]
    | \b(?:and|or)\b (?!\s[-\d$]) | \b[aAI]\s(?=[\d$])
    | (?<=\d) (?: \s(?=\(|[a-wyzA-Z](?![A-Za-z\d^(])) | \s?[mghs](?:\^\{{?\d\}}?|[²³])?(?![A-Za-z\d^(]) )
    | [.;?](?=\s|$) | [。，、；？！] | ,(?=\s)(?![^()\[\]\n]*[)\]]|[^{{}}\n]*\}}|\s[-\d$]{_LISTED}|\s(?:and|or)\s[-\d$])
    | <<[^<>\n]*>> | \((?:or|i\.e\.|mod)\s[^()\n]*\) | [=-]> | —(?![\d.]) | [←-⇿⟵-⟿∎∴∵■-◿☀-➿⭐🌀-🫿]
    | </?[a-z_]+> | ^\s*(?:[-*>•]|\d\))\s"""
)
_PIECE = re.compile(
    r"[ \t:,=≈&)}]*+(?:(?:[*/+x×÷]|and|or|choose)\s(?=[$\d]))?+(\$[^\n]+|[^\n]*\d[^\n]*)(?<!:)(?<!: )(?=\n|$)"
)

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
    whole_lines = text[: text.rfind("\n") + 1] if truncated else text
    if marks := _marks(text, whole_lines):
        return max(marks)[1], True
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
    return [item[2] for item in _ITEM.finditer(answer)] if _LIST.fullmatch(answer) else []


# ---- marked answers


def _marks(text: str, whole_lines: str) -> list[Mark]:
    """Return the answers that are marked; of boxes the last."""
    found = [*_HASHES.finditer(whole_lines), *_TAG.finditer(text)]
    marks = [*last_box(text), *((match.start(), _content(match).strip(" *")) for match in found)]
    filled = [mark for mark in marks if 0 < len(mark[1]) <= MAX_CHARACTERS]
    return [(at, _stated(content) or _only_number(content)) for at, content in filled]


def last_box(text: str) -> list[Mark]:
    r"""Return the last closed and filled \boxed{…}, or nothing. Reads the text once.

    Boxes of one sentence that "and", "or" or a comma joins are one answer: `x=\boxed{2}` or `x=\boxed{5}` is "2, 5".
    """
    found = [*_BOXES.finditer(text)][-1:]
    contents = [dict.fromkeys(map(_content, re.finditer(_BOX, boxes[0], re.DOTALL))) for boxes in found]
    return [(boxes.start(), ", ".join(each)) for boxes, each in zip(found, contents, strict=True)]


def _content(match: re.Match[str]) -> str:
    """Return what is in the group that matched, as one line."""
    return str(match[match.lastindex or 0]).replace("\n", " ").strip()


# ---- answers that are not marked


def _stated(text: str) -> str | None:
    """Return what follows the last "answer is"."""
    for match in reversed(list(_STATED.finditer(text))):
        rest = text[match.end() :].lstrip(" *_\n}")
        if _MATH.match(rest):
            return _pieces(rest)[0]
        sentence = _SENTENCE_END.split(rest, maxsplit=1)[0].strip(" *_`\"'")
        is_short = len(sentence.split()) <= _MAX_WORDS
        if sentence and (is_short or re.search(r"[\d\\$=]|^\(?[A-J]\b", sentence)):
            clause = _REASON.sub("", sentence).rpartition(" is ")[2].strip()
            return _only_number(clause)
    return None


def _only_number(clause: str) -> str:
    """Return the number or formula of a clause that has one: "she has 18 eggs"; else the clause."""
    pieces = _pieces(clause)
    is_prose = len(clause.split()) >= _MIN_SENTENCE or _UNSPACED.search(clause)
    has_one = _MATH.search(clause) or (is_prose and not _NOT_PROSE.search(clause))
    return pieces[0] if has_one and len(pieces) == 1 else clause


def _last_expression(text: str) -> str | None:
    """Return the last formula or number as a whole. A formula without a digit counts only where there is no digit."""
    return max(reversed(_pieces(text)), key=lambda piece: re.search(r"\d", piece) is not None, default=None)


def _pieces(text: str) -> list[str]:
    """Return the formulas, and what has a digit and stands between words, as a whole; "Step 3:" has no number."""
    return [piece[1].strip("$").rstrip(" /,(&-") for piece in _PIECE.finditer(_PROSE.sub(_blank, text))]


def _blank(match: re.Match[str]) -> str:
    """Put what is no prose on a line of its own, which a dollar begins if it is a formula, or a list of them."""
    if match["formulas"]:
        return "\n$" + ", ".join(map(_content, _MATH.finditer(match["formulas"]))) + "\n"
    return match["macro"] or "\n"
