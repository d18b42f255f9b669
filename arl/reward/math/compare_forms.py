r"""Compare two forms part by part. What only algebra can decide is asked of `decide`.

compare(gold, answer, decide) ─► True, False, or None where `decide` does not know

pairs and intervals     brackets and order count: (1,2) is neither (2,1) nor [1,2]
sets, lists, unions     order does not count: {1,2} is 2,1
names                   x=3 is 3, and it is not y=3
values                  numbers by arithmetic, words by spelling, all else by `decide`
"""

import re
from collections.abc import Callable, Sequence

from arl.reward.math.answer_forms import Collection, Form, Named, Value, read_form
from arl.reward.math.exact_numbers import read_number, same_number
from arl.reward.math.latex_cleaning import words_of
from arl.reward.math.units import may_differ

Decide = Callable[[str, str], bool | None]

MOST_PARTS = 64  # of lists whose order does not count: comparing them takes the square of it
LONGEST_PRODUCT = 3  # letters of a word that may be a product of variables
_CLOCK_MINUTES = 2  # digits after the colon of a time of day, which is no ratio
_TUPLE_AND_LIST = ({"()", "list"}, {"[]", "list"})  # "1,2" says no brackets, but its order counts beside them
CHOICE = re.compile(r"(?:\\text\{)?\(?([A-Z])[).:]?\}?")
_LABELED = re.compile(r"(?:\\text\{)?(?:\(([A-Z])\)|([A-Z])[.:)])\}?:? ?(?=[^\s])(.+)", re.DOTALL)
_LONE_CAPITAL = re.compile(r"(?<![A-Za-z])[A-Z](?![A-Za-z])")
_BASED = re.compile(r"([0-9A-F]+)_(?:\{(\d+)\}|(\d))")
_RATIO = re.compile(r"(\d+):(\d+)")
_EQUATION = re.compile(r"[=<>]|\\[lg]eq")
_CONDITION = re.compile(r"[<>]|\\[lgn]eq|\\begin")
_REAL_LINE = {"\\mathbb{R}", "all real numbers", "all reals", "real numbers", "R"}
_REAL_INTERVAL = (Value(r"-\infty"), Value(r"\infty"))
_NOTHING = {"no solution", "no solutions", "no real solutions", "empty set", "none", "\\emptyset"}


def compare(gold: Form, answer: Form, decide: Decide) -> bool | None:
    """Tell whether two forms are the same answer; None: `decide` answered None for a part that it depends on."""
    if gold == answer:
        return True
    if isinstance(gold, Named) and isinstance(answer, Named):
        return _compare_named(gold, answer, decide)
    if isinstance(gold, Named):
        return _compare_unnamed(gold, answer, decide)
    if isinstance(answer, Named):
        return _compare_unnamed(answer, gold, lambda one, other: decide(other, one))
    if isinstance(gold, Collection) and isinstance(answer, Collection):
        return _compare_groups(gold, answer, decide)
    if isinstance(gold, Value) and isinstance(answer, Value):
        return _compare_values(gold, answer, decide)
    return _compare_unlike(gold, answer, decide)


def _compare_named(gold: Named, answer: Named, decide: Decide) -> bool | None:
    if gold.name == answer.name or not gold.name or not answer.name:
        return compare(gold.form, answer.form, decide)
    if _is_number(gold.form) or _is_number(answer.form):
        return False  # x=1 is not y=1
    return decide(gold.text, answer.text)  # y=2x may be x=y/2


def _compare_unnamed(named: Named, other: Form, decide: Decide) -> bool | None:
    """Compare `y=2x+3` with `2x+3`, and with an equation that has no name of its own on one side."""
    if isinstance(other, Value) and _EQUATION.search(other.text):
        return decide(named.text, other.text)
    return compare(named.form, other, decide)


def _is_number(form: Form) -> bool:
    return isinstance(form, Value) and read_number(form.text) is not None


def _compare_groups(gold: Collection, answer: Collection, decide: Decide) -> bool | None:
    ours = _as_vector(gold)
    theirs = _as_vector(answer)
    if ours is not None and theirs is not None:
        return _in_order(ours, theirs, decide)
    if {gold.kind, answer.kind} in _TUPLE_AND_LIST:
        return _in_order(_without_names(gold.items), _without_names(answer.items), decide)
    if not gold.has_order and not answer.has_order:
        return _in_any_order(gold, answer, decide)
    if gold.kind != answer.kind:
        return False
    return _in_order(gold.items, answer.items, decide)


def _as_vector(group: Collection) -> tuple[Form, ...] | None:
    """Return the entries of a tuple, or of a matrix of one row or column."""
    if group.kind == "()":
        return group.items
    if group.kind != "matrix":
        return None
    rows = [row.items for row in group.items if isinstance(row, Collection)]
    if all(len(row) == 1 for row in rows):
        return tuple(row[0] for row in rows)
    if len(rows) == 1:
        return rows[0]
    return None


def _in_order(gold: Sequence[Form], answer: Sequence[Form], decide: Decide) -> bool | None:
    if len(gold) != len(answer):
        return False
    outcomes = []
    for one, other in zip(gold, answer, strict=True):
        outcome = compare(one, other, decide)
        if outcome is False:
            return False
        outcomes.append(outcome)
    return True if all(outcomes) else None


def _in_any_order(gold: Collection, answer: Collection, decide: Decide) -> bool | None:
    ours = _distinct(gold.items)
    theirs = _distinct(answer.items)
    if _are_all_named(ours) != _are_all_named(theirs):
        names = {item.name for item in (*ours, *theirs) if isinstance(item, Named)}
        ours = _without_names(ours)
        theirs = _without_names(theirs)
        if len(names) > 1:  # a=1, b=2 says which is which
            return _in_order(ours, theirs, decide)
    if len(ours) != len(theirs) or len(ours) > MOST_PARTS:
        return False
    return _find_each(ours, theirs, decide)


def _find_each(wanted: Sequence[Form], given: Sequence[Form], decide: Decide) -> bool | None:
    """Tell whether each wanted part equals one of the given ones, and no two the same one."""
    left = list(given)
    is_open = False
    for item in sorted(wanted, key=_is_number, reverse=True):  # numbers first, because they are quick
        outcomes = [compare(item, other, decide) for other in left]
        if True in outcomes:
            left.pop(outcomes.index(True))
        elif None in outcomes:
            is_open = True
        else:
            return False
    return None if is_open else True


def _distinct(items: Sequence[Form]) -> tuple[Form, ...]:
    return tuple(dict.fromkeys(items))


def _are_all_named(items: Sequence[Form]) -> bool:
    return all(isinstance(item, Named) for item in items)


def _without_names(items: Sequence[Form]) -> tuple[Form, ...]:
    return tuple(item.form if isinstance(item, Named) else item for item in items)


def _compare_unlike(gold: Form, answer: Form, decide: Decide) -> bool | None:
    """Compare a group with a value: `|x|<2` may be an interval, and a set of one is its element."""
    value = gold if isinstance(gold, Value) else answer
    group = answer if isinstance(gold, Value) else gold
    assert isinstance(value, Value)
    assert isinstance(group, Collection)
    if group.kind == "{}" and len(group.items) == 1:
        return compare(group.items[0], value, decide)
    if {value.text, words_of(value.text)} & _REAL_LINE:
        return group.kind == "()" and group.items == _REAL_INTERVAL
    if not _CONDITION.search(value.text):
        return False
    return decide(gold.text, answer.text)


def _compare_values(gold: Value, answer: Value, decide: Decide) -> bool | None:
    if not may_differ(gold.unit, answer.unit):
        return False
    ours = read_number(gold.text)
    theirs = read_number(answer.text)
    if ours is not None and theirs is not None:
        return same_number(ours, theirs)
    if gold.text == answer.text:
        return True
    for special in (_compare_choices, _compare_bases, _compare_ratios, _compare_words):
        outcome = special(gold.text, answer.text)
        if outcome is not None:
            return outcome
    return decide(gold.text, answer.text)


def _compare_choices(gold: str, answer: str) -> bool | None:
    """Compare the letter of a multiple choice: "(C)" is "C", and "C. 15". Where it is not asked for, it is no part."""
    choice = CHOICE.fullmatch(gold)
    given = CHOICE.fullmatch(answer)
    if choice and given:
        return choice[1] == given[1]
    labeled = _LABELED.fullmatch(answer)
    if not labeled:
        return None
    in_brackets = labeled[1]
    letter = in_brackets or labeled[2]
    content = labeled[3]
    if choice:
        names_another = _LONE_CAPITAL.search(content) is not None
        return letter == choice[1] and not names_another
    if in_brackets:
        return compare(read_form(gold), read_form(content.strip()), lambda one, other: one == other)
    return None


def _compare_bases(gold: str, answer: str) -> bool | None:
    """Compare numerals with a base, which an answer may leave out because the question says it."""
    ours = _BASED.fullmatch(gold)
    theirs = _BASED.fullmatch(answer)
    if ours and theirs:
        our_base = ours[2] or ours[3]
        their_base = theirs[2] or theirs[3]
        return our_base == their_base and ours[1] == theirs[1]
    if ours and answer.isalnum():
        return ours[1] == answer
    if theirs and gold.isdecimal():
        return False
    return None


def _compare_ratios(gold: str, answer: str) -> bool | None:
    ours = _RATIO.fullmatch(gold)
    theirs = _RATIO.fullmatch(answer)
    if not ours and not theirs:
        return None
    if not ours or not theirs:
        return False
    if len(ours[2]) == _CLOCK_MINUTES or len(theirs[2]) == _CLOCK_MINUTES:
        return False  # a time of day has one spelling
    our_product = int(ours[1]) * int(theirs[2])
    their_product = int(theirs[1]) * int(ours[2])
    return our_product == their_product


def _compare_words(gold: str, answer: str) -> bool | None:
    """Compare words by their spelling. A product of variables, as in `abc`, is left to algebra."""
    ours = words_of(gold)
    theirs = words_of(answer)
    has_text = r"\text" in gold or r"\text" in answer
    is_long = max(len(gold), len(answer)) > LONGEST_PRODUCT
    if ours is not None and ours == theirs and (has_text or is_long):
        return True
    for synonyms in (_NOTHING, _REAL_LINE):
        if synonyms & {gold, ours} and synonyms & {answer, theirs}:
            return True
    if has_text:
        return _letters_of(gold) == _letters_of(answer)
    if _is_prose(gold, ours) or _is_prose(answer, theirs):
        return False
    return None


def _is_prose(text: str, words: str | None) -> bool:
    """Tell whether a text is words alone that are too long to be a product of variables."""
    return words is not None and len(text) > LONGEST_PRODUCT


def _letters_of(text: str) -> str:
    """Return a text without macros, spaces and periods, in lower case: "3:30 p.m." is "3:30pm"."""
    bare = text.replace(r"\text", "")
    return re.sub(r"[{}\s.]", "", bare).lower()
