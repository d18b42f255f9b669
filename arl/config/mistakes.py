"""Write the mistakes that pydantic finds in a recipe's words: field, value, rule and what was probably meant.

ValidationError ─► one Mistake for each field: the alternatives of a union become one, which names all choices
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

Key = tuple[str | int, ...]
OF_ITS_PARENT = ("missing", "extra_forbidden")  # what these name is no value of the recipe
RULES = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "model_type": "must be a section with fields",
    "dict_type": "must be a mapping of names to values",
}


class Mistake(NamedTuple):
    """Hold one mistake.

    Args:
        key: of the field.
        kind: pydantic's name of the error.
        value: what was given.
        rule: that it breaks, and the remedy.
    """

    key: Key
    kind: str
    value: Any
    rule: str


def find_mistakes(error: ValidationError, values: Any) -> list[Mistake]:
    """Return one mistake for each field, in pydantic's order.

    Args:
        values: that were validated.
    """
    of_fields: dict[tuple[Any, ...], list[Any]] = {}
    for number, found in enumerate(error.errors()):
        key = _without_alternatives(found, values)
        is_alternative = key != found["loc"]
        of_fields.setdefault((key, None if is_alternative else number), []).append(found)
    return [_merge(key, alternatives) for (key, _), alternatives in of_fields.items()]


def rule_of(error: Any) -> str:
    """Return the rule that one of pydantic's errors names.

    >>> rule_of({"type": "greater_than", "ctx": {"gt": 0}, "msg": "Input should be greater than 0", "input": 0})
    'must be 1 or more'
    """
    kind: str = error["type"]
    if kind == "literal_error":
        return _rule_of_choices(error["input"], _choices(error))
    if kind == "tuple_type":
        return f"must be a list, as in [{error['input']}]"
    bound = _rule_of_bound(kind, error.get("ctx", {}))
    if bound is not None:
        return bound
    message: str = error["msg"]
    return RULES.get(kind) or re.sub(r"^\w+ should ", "must ", message.removeprefix("Value error, "))


def _merge(key: Key, alternatives: Sequence[Any]) -> Mistake:
    """Make one mistake of what each alternative of a union says about the same value."""
    first = alternatives[0]
    choices = [choice for error in alternatives for choice in _choices(error)]
    rules = [rule_of(error) for error in alternatives if error["type"] != "literal_error"]
    if choices:
        rules.insert(0, _rule_of_choices(first["input"], choices))
    return Mistake(key, first["type"], first["input"], ", or ".join(dict.fromkeys(rules)))


def _choices(error: Any) -> list[str]:
    """Return what a literal may be; pydantic gives it as text: 'file', 'memory' or 'ipc'."""
    return re.findall(r"'([^']*)'", error["ctx"]["expected"]) if error["type"] == "literal_error" else []


def _rule_of_choices(value: Any, choices: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(value).lower(), choices, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}give one of {', '.join(choices)}"


def _rule_of_bound(kind: str, context: Mapping[str, Any]) -> str | None:
    """Return the rule of a lower or upper bound, which for a whole number is the least or most that it may be."""
    match kind:
        case "greater_than" if isinstance(context["gt"], int):
            return f"must be {context['gt'] + 1} or more"
        case "greater_than":
            return f"must be more than {_write(context['gt'])}"
        case "greater_than_equal":
            return f"must be {_write(context['ge'])} or more"
        case "less_than" if isinstance(context["lt"], int):
            return f"must be {context['lt'] - 1} or less"
        case "less_than":
            return f"must be less than {_write(context['lt'])}"
        case "less_than_equal":
            return f"must be {_write(context['le'])} or less"
    return None


def _write(bound: float) -> str:
    """Write a number without the fraction that pydantic gives to whole floats."""
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _without_alternatives(error: Any, values: Any) -> Key:
    """Return the key without pydantic's names of a union's alternatives, such as `literal['auto']`."""
    if error["type"] in OF_ITS_PARENT:
        return tuple(error["loc"])
    key: Key = error["loc"]
    value = values
    for depth, part in enumerate(key[:-1]):
        try:
            value = value[part]
        except (TypeError, KeyError, IndexError):
            return key[:depth] if value is error["input"] else key
    is_alternative = len(key) > 1 and isinstance(key[-1], str) and value is error["input"]
    return key[:-1] if is_alternative else key
