"""Write the mistakes that pydantic finds in a recipe's words: place, field, value, rule and what was probably meant."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from arl.config.data_section import task_options
from arl.config.objective_section import ChosenSection
from arl.config.recipe import Recipe
from arl.config.section import inner_sections

Key = tuple[str | int, ...]
SHOWN_CHARACTERS = 300  # of a value
RULES = {  # where pydantic speaks of Python
    "model_type": "must be a section with fields",
    "dict_type": "must be a mapping of names to values",
    "string_type": "must be text",
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


def find_mistakes(error: ValidationError) -> list[Mistake]:
    """Return the mistakes in pydantic's order."""
    return [Mistake(found["loc"], found["type"], found["input"], rule_of(found)) for found in error.errors()]


def rule_of(error: Any) -> str:
    """Return the rule that one of pydantic's errors names.

    >>> rule_of({"type": "greater_than", "msg": "Input should be greater than 0", "input": 0})
    'must be greater than 0'
    """
    kind = error["type"]
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", error["ctx"]["expected"])
        return f"{_meant(str(error['input']).lower(), choices)}give one of {', '.join(choices)}"
    if kind == "tuple_type":
        return f"must be a list, as in [{error['input']}]"
    message = error["msg"].removeprefix("Value error, ")
    return RULES.get(kind) or re.sub(r"^\w+ should ", "must ", message)


def explain(mistake: Mistake, values: dict[str, Any], places: Mapping[Key, str], path: Path) -> str:
    """Write a mistake as place, field, value, rule and remedy.

    Args:
        values: of the whole recipe.
        places: file and line of every key, or the option that gave it.
        path: of the recipe, where there is no place.
    """
    key, kind, value, rule = mistake
    if kind == "value_error" and not rule.startswith("must "):  # between fields: it begins with the one at fault
        field = re.split(r"[ :]", rule, maxsplit=1)[0]
        return f"{place_of(tuple(field.split('.')), places, path)}: {rule}"
    place = f"{place_of(key, places, path)}: {'.'.join(map(str, key))}"
    if kind == "extra_forbidden":
        names = _valid_names(key[:-1], values)
        valid = f"valid: {', '.join(names) or 'none'}"
        return f"{place}: unknown key; {_meant(str(key[-1]), names).rstrip() or valid}"
    if kind == "missing":
        return f"{place}: required, and missing"
    return f"{place} = {value!r:.{SHOWN_CHARACTERS}}: {rule}"


def place_of(key: Key, places: Mapping[Key, str], path: Path) -> str:
    """Return the place of the key, or of the innermost section around it that the file or an override names."""
    for length in range(len(key), 0, -1):
        around = key[:length]
        if around in places:
            return places[around]
    return str(path)


def _meant(given: str, names: list[str]) -> str:
    """Ask whether the nearest name was meant, also the one whose words begin with these letters, such as lr."""
    initials = [name for name in names if "".join(word[:1] for word in name.split("_")) == given]
    near = difflib.get_close_matches(given, names, n=1) or initials
    return f"did you mean {near[0]}? " if near else ""


def _valid_names(section: Key, values: dict[str, Any]) -> list[str]:
    """List the fields of a section of the recipe, or of the options of its task."""
    if section == ("data", "options"):
        return list(task_options(values["data"]["task"]).model_fields)
    model: type[BaseModel] = Recipe
    for part in section:
        field = model.model_fields.get(str(part))
        inner = inner_sections(field.annotation) if field is not None else []
        if not inner:  # a section inside a task's options
            return []
        model = inner[0]
        if issubclass(model, ChosenSection):
            model = model.implementation(values[str(part)])
    return list(model.model_fields)
