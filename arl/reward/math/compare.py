r"""Compare a gold answer with another one, part by part.

pairs and intervals     brackets and order count: (1,2) is neither (2,1) nor [1,2]
sets, lists, unions     order does not count: {1,2} is 2,1
names                   x=3 is 3, and it is not y=3
choices and words       by letters: C is "(C) 15", yes is Yes
values                  by what they are worth
"""

import contextlib
import re

from arl.reward.math.forms import REAL_LINE, Form, spell
from arl.reward.math.tokens import UNITS
from arl.reward.math.values import rational, same_relation, same_value

_UNORDERED = {"list", "set"}
_GROUPS = _UNORDERED | {"()", "[)", "(]", "[]"}
_SYNONYMS = {  # of words without spaces
    **dict.fromkeys(("allrealnumbers", "allreals", "realnumbers", "r"), "R"),
    **dict.fromkeys(("nosolution", "nosolutions", "norealsolutions", "emptyset", "none"), r"\emptyset"),
}

_DECORATION = re.compile(r"\\(?:text|math|bold|oper)[a-z]*|\\boxed|\\[ ,;()\[\]]|[{}$]")
_CHOICE = re.compile(r"(?:option|choice)?\s*(?:\(([A-Za-z])\)|([A-Za-z])(?:[).:]|$))\s*(.*)", re.IGNORECASE | re.DOTALL)
_GOLD_CHOICE = re.compile(r"\(?([A-J])[).:]?")
_OTHER_CHOICE = re.compile(r"(?:\b(?:and|or)\s+|,\s*)\(?[A-J](?:$|[^\w'])|\([A-J]\)|(?<!\w)[A-J][).:](?:\s|$)")
LABEL = re.compile(r"^[$\s]*(?:\\text[a-z]*\{)?\s*\([A-Z]\)\s*\}?:?\s*(?=\S)")


def compare_choices(gold: str, answer: str) -> bool | None:
    r"""Compare the letter of a multiple choice as it is written: "(C)" is "C", and "C. 15"; None: it is no choice."""
    letter = choice_of(gold)
    given = _CHOICE.fullmatch(_bare(answer))
    if letter is None or given is None:
        return None
    return (given[1] or given[2]).upper() == letter and _OTHER_CHOICE.search(given[3]) is None


def choice_of(answer: str) -> str | None:
    """Return the letter of an answer that is one: "(C)" is C."""
    match = _GOLD_CHOICE.fullmatch(_bare(answer))
    return match[1] if match else None


def _bare(answer: str) -> str:
    return _DECORATION.sub(" ", answer).strip(" .\n")


def same_answer(gold: Form, answer: Form) -> bool:
    """Tell whether two answers are the same."""
    if gold == answer:
        return True
    kinds = {gold.kind, answer.kind}
    if "named" in kinds:
        return _same_named(gold, answer)
    if kinds == {"relation"}:
        return same_relation(gold, answer)
    words = _words(gold)
    if words and words == _words(answer):
        return True
    if kinds & {"words", "tokens"}:
        return False
    if kinds <= _UNORDERED:
        return _in_any_order(gold, answer)
    if kinds <= _GROUPS:  # a list has no brackets, but its order counts beside them
        return (gold.kind == answer.kind or kinds == {"()", "list"}) and _in_order(gold, answer)
    return not kinds & _GROUPS and _same_quantity(gold, answer)


def _same_named(gold: Form, answer: Form) -> bool:
    if gold.kind != answer.kind:
        at = 2 if "relation" in (gold.kind, answer.kind) else 1  # compared with the whole statement, or its value
        return same_answer(*(node.items[at] if node.kind == "named" else node for node in (gold, answer)))
    name, value, whole = gold.items
    other_name, other_value, other_whole = answer.items
    if name == other_name:
        return same_answer(value, other_value)
    is_number = rational(value) is not None or rational(other_value) is not None
    return not is_number and same_relation(whole, other_whole)  # x=1 is not y=1, but y=2x may be x=y/2


def _words(node: Form) -> str:
    """Return the words of a form without spaces, in one spelling of synonyms; "" if it is no word."""
    if node == REAL_LINE:
        return "R"
    if node.kind == "symbol":
        return node.text
    words = re.sub(r"(?<=\D) | (?=\D)", "", node.text) if node.kind == "words" else ""
    return _SYNONYMS.get(words, words)


def _in_order(gold: Form, answer: Form) -> bool:
    return len(gold.items) == len(answer.items) and all(map(same_answer, gold.items, answer.items))


def _in_any_order(gold: Form, answer: Form) -> bool:
    ours = list(dict.fromkeys(gold.items))
    left = list(dict.fromkeys(answer.items))
    names = {item.items[0] if item.kind == "named" else None for item in (*ours, *left)}
    if None in names and len(names) > 2:
        return _in_order(gold, answer)  # a=1, b=2 says which is which, and 1, 2 does not
    if len(ours) != len(left):
        return False
    for item in ours:
        found = next((other for other in left if same_answer(item, other)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _same_quantity(gold: Form, answer: Form) -> bool:
    ours, our_unit = _split_unit(gold)
    theirs, their_unit = _split_unit(answer)
    units = {our_unit, their_unit}
    if len(units) == 2 and units <= UNITS.keys() and "unit" not in units:
        return False  # two of the table; "5" is right where "5 cm" is gold, and a unit of any kind is called "unit"
    if ours.kind == "based":  # an answer may leave out the base, because the question says it
        return ours.text == theirs.text and theirs.items in {(), ours.items}
    if ours == theirs or same_value(ours, theirs):
        return True
    is_half_percent = (our_unit == "percent") != (their_unit == "percent")
    return is_half_percent and same_value(gold, answer)  # 10% is 10, and it is 0.1


def _split_unit(node: Form) -> tuple[Form, str]:
    """Return a value without its unit, and the unit ("" if there is none)."""
    if node.kind == "-" and node.items[0].kind == "unit":
        return Form("-", node.items[0].items), node.items[0].text
    return (node.items[0], node.text) if node.kind == "unit" else (node, "")


def canonical_form(node: Form) -> Form:
    """Return a form without names and units, its numbers as fractions, and its sets in order."""
    if node.kind == "named":
        return canonical_form(node.items[1])
    value, _ = _split_unit(node)
    number = rational(value)
    with contextlib.suppress(ValueError):  # Python writes no number of more than 4,300 digits
        if number is not None:
            return Form("number", text=str(number))
    items = [canonical_form(item) for item in value.items]
    if value.kind in _UNORDERED:
        return Form("{}", tuple(sorted(items, key=spell)))
    return value._replace(items=tuple(items))
