r"""Compare a gold answer with another one, part by part.

pairs and intervals     brackets and order count: (1,2) is neither (2,1) nor [1,2]
sets, lists, unions     order does not count: {1,2} is 2,1
names                   x=3 is 3, and it is not y=3
choices and words       by letters: C is "(C) 15", yes is Yes
values                  by what they are worth
"""

import contextlib
import re
from collections.abc import Sequence

from arl.reward.math.forms import REAL_LINE, Form
from arl.reward.math.tokens import UNITS
from arl.reward.math.values import rational, same_relation, same_value
from arl.reward.math.vocabulary import first_spellings

_UNORDERED = {"list", "set"}
_WITH_UNITS = {"unit", "+", "-", "*", "/"}
_KNOWN_UNITS = {*UNITS.values()} - {"unit"}
_BRACKETS = {"()", "[)", "(]", "[]", "ratio"}
_VARIABLES = re.compile(r"(?!.*(.).*\1)[abcdkmnxyzABCDKMNXYZ]+|[^aeiouAEIOU]+|[A-Z]{2}")  # a product, and no word
_SYNONYMS = first_spellings("synonyms")
_DECORATION = re.compile(r"\\(?:text|math|bold|oper)[a-z]*|\\boxed|\\[ ,;()\[\]]|[{}$]")
_LETTER = r"\(?([A-Za-z])(?:[).:]|\s[-–—](?=\s[A-Za-z]{3})|$)"
_CHOICE = re.compile(
    rf"(?is)(?:(?:the\s+)?(?:(?:final|correct)\s+)?(?:answer|option|choice)\b\s*(?:is\b)?:?)?\s*{_LETTER}\s*(.*)"
)
_LETTERS = re.compile(r"(?!.*([A-J]).*\1)\(?[A-J]\)?(?:\s*(?:[,;/&]|and\b|or\b)?\s*\(?[A-J]\)?){0,9}[.:]?")
_OTHER_CHOICE = re.compile(
    r"^(?:and|or|[,/&])\s*\(?[A-J]\b|(?:^|[,;.]\s*|\b(?:and|or)\s+)[A-J][).:](?:\s|$)|(?<!\w)(?:\([A-J]\)|[A-J]\))|^[A-J]$"
)
LABEL = re.compile(
    r"[$\s]*(?:\\text[a-z]*\{)?\s*\(?([A-J])[).:](?=[\s\d:$\\}])(?:[\s}:~]|\\[ ;,])*"
    r"(?=[^\s}:+*/^=,<>_!-])(?!\\(?:cdot|times|cup|cap))"
)


def compare_choices(gold: str, answer: str) -> bool | None:
    r"""Compare the letters of a multiple choice as they are written; None: it is no choice.

    "(C)" is "C", "c" and "C. 15"; "A, C" is "AC". Gold "(C) 15" is also what is behind the letter.
    """
    label = LABEL.match(gold)
    ours = letters_of(gold) or (label[1] if label else "")
    theirs = letters_of(answer) or _chosen(_bare(answer))
    return ours == theirs if ours and theirs else None


def letters_of(answer: str) -> str:
    """Return the letters of an answer that has nothing else, in their order: "(C), A" is AC."""
    bare = _bare(answer)
    return "".join(sorted(re.findall("[A-J]", bare))) if _LETTERS.fullmatch(bare) else ""


def _chosen(answer: str) -> str:
    """Return the letter that an answer gives before a text, with others that the text gives: "C) 15" is C."""
    match = _CHOICE.fullmatch(answer)
    return match[1].upper() + "".join(_OTHER_CHOICE.findall(match[2])) if match else ""


def _bare(answer: str) -> str:
    return _DECORATION.sub(" ", answer).strip(" .\n*`")


def same_answer(gold: Form, answer: Form) -> bool:
    """Tell whether two answers are the same."""
    if gold == answer:
        return True
    kinds = {gold.kind, answer.kind}
    if "named" in kinds:
        return _same_named(gold, answer)
    if kinds == {"relation"}:
        return same_relation(gold, answer)
    ours, theirs = (_words(node, "words" in kinds) for node in (gold, answer))
    if ours and (ours == theirs or gold.kind == answer.kind == "*"):
        return ours == theirs
    if kinds & _UNORDERED and not kinds & _BRACKETS:
        return _in_any_order(gold, answer)
    if kinds <= _BRACKETS | {"list"}:  # a list has no brackets, but its order counts beside them
        return (gold.kind == answer.kind or kinds == {"()", "list"}) and _in_order(gold.items, answer.items)
    return not kinds & _BRACKETS and _same_quantity(gold, answer)


def _same_named(gold: Form, answer: Form) -> bool:
    if gold.kind != answer.kind:
        at = 2 if "relation" in (gold.kind, answer.kind) else 1  # compared with the whole statement, or its value
        return same_answer(*(node.items[at] if node.kind == "named" else node for node in (gold, answer)))
    name, value, whole = gold.items
    other_name, other_value, other_whole = answer.items
    return same_answer(value, other_value) if name == other_name else same_relation(whole, other_whole)


def _words(node: Form, is_word: bool) -> str:
    """Return the words of a form without spaces, in one spelling of synonyms; "" if it is no word.

    Args:
        is_word: what looks like a product of variables is a word, too, as the other answer is one.
    """
    if node == REAL_LINE:
        return "R"
    if node.kind == "symbol":
        return node.text
    if node.kind == "*" and all(item.kind == "symbol" and item.text.isalpha() for item in node.items):
        letters = "".join(item.text for item in node.items)
        return "" if _VARIABLES.fullmatch(letters) and not is_word else letters.lower()
    words = re.sub(r"(?<=\D) | (?=\D)", "", node.text) if node.kind == "words" else ""
    return _SYNONYMS.get(words, words)


def _in_order(ours: Sequence[Form], theirs: Sequence[Form]) -> bool:
    return len(ours) == len(theirs) and all(map(same_answer, ours, theirs))


def _in_any_order(gold: Form, answer: Form) -> bool:
    """Tell whether two lists have the same items. One value is "0.5 or 50%", too."""
    ours, theirs = (node.items if node.kind in _UNORDERED else (node,) for node in (gold, answer))
    names = {item.items[0] if item.kind == "named" else None for item in (*ours, *theirs)}
    if None in names and len(names) > 2:
        return _in_order(ours, theirs)  # a=1, b=2 says which is which, and 1, 2 does not
    are_ours = all(any(same_answer(one, other) for one in ours) for other in theirs)
    return are_ours and all(any(same_answer(one, other) for other in theirs) for one in ours)


def _same_quantity(gold: Form, answer: Form) -> bool:
    our_units, ours = _split_units(gold)
    their_units, theirs = _split_units(answer)
    is_part = our_units <= their_units or their_units <= our_units
    if not is_part and our_units | their_units <= _KNOWN_UNITS:
        return False  # two of the table; "5" is right where "5 cm" is gold, and a unit of any kind is called "unit"
    if ours.kind == "based":  # an answer may leave out the base, because the question says it
        return ours.text == theirs.text and theirs.items in {(), ours.items}
    if ours == theirs or same_value(ours, theirs):
        return True
    is_factor = (our_units ^ their_units) & {"percent", "degree"}  # 10% is 10, and it is 0.1
    return bool(is_factor) and same_value(gold, answer)


def _split_units(node: Form) -> tuple[set[str], Form]:
    """Return the units of an amount, as in 180° − x, and the amount without them. In a sine the degree is a factor."""
    if node.kind not in _WITH_UNITS:
        return set(), node
    units, items = zip(*map(_split_units, node.items), strict=True)
    own = {node.text} if node.kind == "unit" else set()
    return own.union(*units), items[0] if own else node._replace(items=items)


def spell(node: Form) -> str:
    """Return one spelling of an answer, without names and units, its numbers as fractions and its sets in order."""
    if node.kind == "named":
        return spell(node.items[1])
    _, value = _split_units(node)
    number = rational(value)
    with contextlib.suppress(ValueError):  # Python writes no number of more than 4,300 digits
        if number is not None:
            return str(number)
    items = [spell(item) for item in value.items]
    if value.kind in _UNORDERED:
        return f"{{{','.join(sorted(items))}}}"
    inner = ",".join(items)
    if len(value.kind) == 2:
        return value.kind[0] + inner + value.kind[1]
    return f"{value.text or value.kind}({inner})" if items else value.text
