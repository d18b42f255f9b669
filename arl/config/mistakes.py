"""Write the mistakes that pydantic finds in a recipe's words: place, field, value, rule and what was probably meant.

ValidationError ─► one Mistake for each field: the alternatives of a union become one, which names all choices ─► a line
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from arl.config.data_section import task_options
from arl.config.objective_section import ChosenSection
from arl.config.recipe import Recipe
from arl.config.section import inner_sections

Key = tuple[str | int, ...]
ALIKE = 0.8  # of 1: how much a field of another section must be written alike to be suggested
LONGEST_VALUE = 300  # characters of a value that are shown
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


def explain(mistake: Mistake, values: dict[str, Any], places: Mapping[Key, str], path: Path) -> str:
    """Write a mistake as place, field, value, rule and remedy.

    Args:
        values: of the whole recipe.
        places: file and line of every key, or the option that gave it.
        path: of the recipe, where there is no place.
    """
    key, kind, value, rule = mistake
    if kind == "value_error" and not rule.startswith("must "):  # between fields: it begins with the one at fault
        field = rule.partition(" ")[0].rstrip(":")
        named = tuple(field.split("."))
        return f"{place_of(named, places, path)}: {rule}"
    place = place_of(key, places, path)
    if kind == "extra_forbidden":
        return f"{place}: {_dotted(key)}: unknown key{_nearest(key, values)}"
    if kind == "missing":
        return f"{place}: {_dotted(key)}: required, and missing"
    return f"{place}: {_dotted(key)} = {_shown(value)}: {rule}"


def place_of(key: Key, places: Mapping[Key, str], path: Path) -> str:
    """Return the place of the key, or of the innermost section around it that the file or an override names."""
    for length in range(len(key), 0, -1):
        around = key[:length]
        if around in places:
            return places[around]
    return str(path)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _nearest(key: Key, values: dict[str, Any]) -> str:
    """Suggest the valid name that is nearest to the last part of `key`, or all of them."""
    *section, last = key
    unknown = str(last)
    names = _valid_names(tuple(section), values)
    close = difflib.get_close_matches(unknown, names, n=1)
    if not close:  # lr
        close = [name for name in names if "".join(word[0] for word in name.split("_")) == unknown]
    if not close:
        close = _alike_elsewhere(unknown)
    if close:
        alternatives = " or ".join(close)
        return f"; did you mean {alternatives}?"
    valid = ", ".join(names) or "none"
    return f"; valid: {valid}"


def _alike_elsewhere(name: str) -> list[str]:
    """List the fields of other sections with this name, or else with the name that is nearest to it."""
    fields: dict[str, list[str]] = {}
    for field in _all_fields(Recipe):
        last = field.rpartition(".")[2]
        namesakes = fields.setdefault(last, [])
        namesakes.append(field)
    nearest = difflib.get_close_matches(name, fields, n=1, cutoff=ALIKE)
    if not nearest:
        return []
    return fields[nearest[0]]


def _all_fields(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}"
        for inner in inner_sections(field.annotation):
            yield from _all_fields(inner, f"{prefix}{name}.")


def _valid_names(section: Key, values: dict[str, Any]) -> list[str]:
    """List the fields of a section; of the options of a task, which may hold sections of their own, as well."""
    model: type[BaseModel] = Recipe
    inner = section
    if section[:2] == ("data", "options"):
        model = task_options(values["data"]["task"])
        inner = section[2:]
    for part in inner:
        field = model.model_fields.get(str(part))
        found = inner_sections(field.annotation) if field is not None else []
        if len(found) != 1:
            return []
        (model,) = found
        if issubclass(model, ChosenSection):
            model = model.implementation(values[str(part)])
    return list(model.model_fields)


def _dotted(key: Key) -> str:
    return ".".join(map(str, key))
