r"""Compare a gold answer with another one, part by part.

pairs and intervals     brackets and order count: (1,2) is neither (2,1) nor [1,2]
sets, lists, unions     order does not count: {1,2} is 2,1
names                   x=3 is 3, and it is not y=3
choices and words       by letters: C is "(C) 15", yes is Yes
values                  by what they are worth
"""

import re
from collections.abc import Sequence

from arl.reward.math.forms import REAL_LINE, Form, spell
from arl.reward.math.tokens import UNITS, may_differ
from arl.reward.math.values import exact, same_number, same_relation, same_value

MAX_BITS = 4000  # of a number that is spelled out; Python writes up to 4,300 digits
MAX_PARTS = 64  # of lists whose order does not count: comparing them takes the square of it
_UNORDERED = {"list", "set", "union", "plus-minus"}
_GROUPS = _UNORDERED | {"()", "[)", "(]", "[]", "row", "matrix"}
_TUPLE_AND_LIST = ({"()", "list"}, {"[]", "list"})  # "1,2" says no brackets, but its order counts beside them
_CLOCK_MINUTES = 2  # digits after the colon of a time of day, which is no ratio
_SYNONYMS = {  # of words without spaces
    **dict.fromkeys((r"\mathbb{R}", "allrealnumbers", "allreals", "realnumbers", "r"), r"\mathbb{R}"),
    **dict.fromkeys(("nosolution", "nosolutions", "norealsolutions", "emptyset", "none"), r"\emptyset"),
}

_DECORATION = re.compile(r"\\(?:text|math|bold|oper)[a-z]*|\\boxed|\\[ ,;()\[\]]|[{}$]")
_CHOICE = re.compile(r"(?:option|choice)?\s*(?:\(([A-Za-z])\)|([A-Za-z])(?:[).:]|$))\s*(.*)", re.IGNORECASE | re.DOTALL)
_GOLD_CHOICE = re.compile(r"\(?([A-J])[).:]?")
_OTHER_CHOICE = re.compile(r"(?:\b(?:and|or)\s+|,\s*)\(?[A-J](?:$|[^\w'])|\([A-J]\)|(?<!\w)[A-J][).:](?:\s|$)")


def compare_choices(gold: str, answer: str) -> bool | None:
    r"""Compare the letter of a multiple choice as it is written: "(C)" is "C", and "C. 15"; None: it is no choice."""
    choice = _GOLD_CHOICE.fullmatch(_bare(gold))
    given = _CHOICE.fullmatch(_bare(answer))
    if choice is None or given is None:
        return None
    letter = given[1] or given[2]
    return letter.upper() == choice[1] and _OTHER_CHOICE.search(given[3]) is None


def without_label(answer: str) -> str:
    """Return what stands behind the label of an option, as in "(A) 5"; else the whole answer."""
    match = re.fullmatch(r"(?:\\text[a-z]*\{)?\s*\([A-Z]\)\s*\}?:?\s*(?=[^\s])(.+)", answer, re.DOTALL)
    return match[1] if match else answer


def choice_of(answer: str) -> str | None:
    """Return the letter of an answer that is one: "(C)" is C."""
    match = _GOLD_CHOICE.fullmatch(_bare(answer))
    return match[1] if match else None


def _bare(answer: str) -> str:
    return _DECORATION.sub(" ", answer).strip(" .")


def same_answer(gold: Form, answer: Form) -> bool:
    """Tell whether two answers are the same."""
    if gold == answer:
        return True
    kinds = {gold.kind, answer.kind}
    if "named" in kinds:
        return _same_named(gold, answer)
    if "relation" in kinds:
        return gold.kind == answer.kind and _same_relations(gold, answer)
    words = _words(gold)
    if words and words == _words(answer):
        return True
    if kinds & {"words", "tokens"}:
        return False
    if not kinds & _GROUPS:
        return _same_values(gold, answer)
    if kinds <= _GROUPS:
        return _same_groups(gold, answer)
    value, group = (answer, gold) if gold.kind in _GROUPS else (gold, answer)
    return group.kind == "set" and len(group.items) == 1 and same_answer(group.items[0], value)


def _same_named(gold: Form, answer: Form) -> bool:
    if gold.kind != answer.kind:
        at = 2 if "relation" in (gold.kind, answer.kind) else 1  # compared with the whole statement, or its value
        return same_answer(*(node.items[at] if node.kind == "named" else node for node in (gold, answer)))
    name, value, whole = gold.items
    other_name, other_value, other_whole = answer.items
    if name == other_name or not name.text or not other_name.text:
        return same_answer(value, other_value)
    if exact(value) is not None or exact(other_value) is not None:
        return False  # x=1 is not y=1
    return _same_relations(whole, other_whole)  # y=2x may be x=y/2


def _same_relations(gold: Form, answer: Form) -> bool:
    if gold.text != ":" or answer.text != ":":
        return ":" not in gold.text + answer.text and same_relation(gold, answer)
    if any(len(side.items[1].text) == _CLOCK_MINUTES for side in (gold, answer)):
        return False  # a time of day has one spelling
    return same_value(Form("/", gold.items), Form("/", answer.items))


def _words(node: Form) -> str:
    """Return the words of a form without spaces, in one spelling of synonyms; "" if it is no word."""
    if node == REAL_LINE:
        return r"\mathbb{R}"
    if node.kind == "symbol" and len(node.text) > 1:
        return node.text
    words = re.sub(r"(?<=\D) | (?=\D)", "", node.text) if node.kind == "words" else ""
    return _SYNONYMS.get(words, words)


# ---- collections


def _same_groups(gold: Form, answer: Form) -> bool:
    ours = _as_vector(gold)
    theirs = _as_vector(answer)
    if ours is not None and theirs is not None:
        return _in_order(ours, theirs)
    if {gold.kind, answer.kind} in _TUPLE_AND_LIST:
        return _in_order(_without_names(gold.items), _without_names(answer.items))
    if gold.kind in _UNORDERED and answer.kind in _UNORDERED:
        return _in_any_order(gold, answer)
    return gold.kind == answer.kind and _in_order(gold.items, answer.items)


def _as_vector(group: Form) -> Sequence[Form] | None:
    """Return the entries of a tuple, or of a matrix of one row or column."""
    if group.kind == "()":
        return group.items
    if group.kind != "matrix":
        return None
    if all(len(row.items) == 1 for row in group.items):
        return [row.items[0] for row in group.items]
    return group.items[0].items if len(group.items) == 1 else None


def _in_order(gold: Sequence[Form], answer: Sequence[Form]) -> bool:
    return len(gold) == len(answer) and all(map(same_answer, gold, answer))


def _in_any_order(gold: Form, answer: Form) -> bool:
    ours = tuple(dict.fromkeys(gold.items))
    theirs = tuple(dict.fromkeys(answer.items))
    if _are_named(ours) != _are_named(theirs):
        names = {item.items[0] for item in (*ours, *theirs) if item.kind == "named"}
        ours = _without_names(ours)
        theirs = _without_names(theirs)
        if len(names) > 1:  # a=1, b=2 says which is which
            return _in_order(ours, theirs)
    if len(ours) != len(theirs) or len(ours) > MAX_PARTS:
        return False
    left = list(theirs)
    for item in ours:
        found = next((other for other in left if same_answer(item, other)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _are_named(items: Sequence[Form]) -> bool:
    return all(item.kind == "named" for item in items)


def _without_names(items: Sequence[Form]) -> tuple[Form, ...]:
    return tuple(item.items[1] if item.kind == "named" else item for item in items)


# ---- values


def _same_values(gold: Form, answer: Form) -> bool:
    gold = _with_letter_unit(gold, answer)
    answer = _with_letter_unit(answer, gold)
    ours, our_unit = split_unit(gold)
    theirs, their_unit = split_unit(answer)
    if not may_differ(our_unit, their_unit):
        return False
    if "based" in (ours.kind, theirs.kind):
        return _same_in_base(ours, theirs)
    one = exact(ours)
    other = exact(theirs)
    if one is not None and other is not None:
        return same_number(one, other)
    return ours == theirs or same_value(ours, theirs)


def _with_letter_unit(node: Form, other: Form) -> Form:
    """Read `5m` as five meters where the other answer has a unit; else it is a product."""
    is_product = node.kind == "*" and len(node.items) == 2 and node.items[1].kind == "symbol"
    if other.kind != "unit" or not is_product or node.items[1].text not in UNITS:
        return node
    return Form("unit", node.items[:1], UNITS[node.items[1].text])


def split_unit(node: Form) -> tuple[Form, str]:
    """Return a value without its unit, and the unit ("" if there is none)."""
    if node.kind == "-" and node.items[0].kind == "unit":
        value, unit = split_unit(node.items[0])
        return Form("-", (value,)), unit
    if node.kind == "unit":
        return split_unit(node.items[0])[0], node.text
    return node, ""


def _same_in_base(gold: Form, answer: Form) -> bool:
    """Compare numerals with a base, which an answer may leave out because the question says it."""
    if gold.kind != "based":
        return False
    return gold.text == answer.text and answer.kind in {"based", "number"} and answer.items in {(), gold.items}


def spell_answer(node: Form) -> str:
    """Return one spelling for all answers that are equal without algebra."""
    return spell(_normal(node))


def _normal(node: Form) -> Form:
    """Return a form without names and units, its numbers as fractions, and its sets in order."""
    if node.kind == "named":
        return _normal(node.items[1])
    value, _ = split_unit(node)
    number = exact(value)
    if number is not None:
        numerator, denominator = number.value.as_integer_ratio()
        is_short = numerator.bit_length() + denominator.bit_length() < MAX_BITS
        return Form("number", text=str(number.value)) if is_short else value
    items = [_normal(item) for item in value.items]
    if value.kind in _UNORDERED:
        return Form("{}", tuple(sorted(items, key=spell)))
    return value._replace(items=tuple(items))
