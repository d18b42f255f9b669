"""Write the mistakes that pydantic finds in a recipe's words: place, field, value, rule and what was probably meant."""

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from arl.config.data_section import task_options, with_task
from arl.config.objective_section import ChosenSection
from arl.config.recipe import Recipe
from arl.config.section import INNER, given_fields, inner_sections
from arl.config.yaml_loader import Key, load_yaml

SHOWN_CHARACTERS = 300  # of a value
NEAR = 0.8  # likeness of two names
RULES = {  # where pydantic speaks of Python
    "model_type": "must be a section with fields",
    "dict_type": "must be a mapping of names to values",
    "string_type": "must be text",
}
OTHER_SYSTEMS = Path(__file__).with_name("other_systems.yaml")  # our field -> its names elsewhere


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


def explain(error: Any, values: dict[str, Any], places: Mapping[Key, str], path: Path) -> str:
    """Write one of pydantic's errors as place, field, value, rule and remedy.

    Args:
        values: of the whole recipe.
        places: file and line of every key, or the option that gave it.
        path: of the recipe, where there is no place.
    """
    key = _as_given(error["loc"], values)
    kind = error["type"]
    rule = rule_of(error)
    if kind == "value_error" and not rule.startswith("must "):  # between fields: it begins with the one at fault
        field = re.split(r"[ :]", rule, maxsplit=1)[0]
        if key[:1] == ("data",) and len(key) > 1 and isinstance(key[1], int) and rule.startswith("data"):
            source = f"data.{key[1]}"
            rule = rule.replace("data", source, 1)
            field = field.replace("data", source, 1)
        return f"{place_of(_parsed(field), places, path)}: {rule}"
    place = f"{place_of(key, places, path)}: {'.'.join(map(str, key))}"
    if kind == "extra_forbidden":
        names = _valid_names(key[:-1], values)
        translated = "; ".join(_translations(str(key[-1]), error["input"]))
        if translated and "options" not in key:
            return f"{place}: unknown key; {translated}"
        valid = f"valid: {', '.join(names) or 'none'}"
        return f"{place}: unknown key; {_meant(str(key[-1]), names, _all_fields(Recipe)).rstrip() or valid}"
    if kind == "missing":
        return f"{place}: required, and missing"
    return f"{place} = {error['input']!r:.{SHOWN_CHARACTERS}}: {rule}"


def _as_given(key: Key, values: Mapping[str, Any]) -> Key:
    """Return the way to a field in what was given, where several sources are one list."""
    if not isinstance(values.get("data"), list):
        return key
    if key[:1] == (INNER,):
        return ("data", int(key[1]) + 1, *key[2:])
    return ("data", 0, *key[1:]) if key[:1] == ("data",) else key


def _parsed(field: str) -> Key:
    return tuple(int(part) if part.isdecimal() else part for part in field.split("."))


def place_of(key: Key, places: Mapping[Key, str], path: Path) -> str:
    """Return the place of the key, or of the innermost section around it that the file or an override names."""
    for length in range(len(key), 0, -1):
        around = key[:length]
        if around in places:
            return places[around]
        if isinstance(around[-1], int):  # an element of a list, which begins where its first key is
            for inner, place in places.items():
                if inner[:length] == around:
                    return place
    return str(path)


def _translations(name: str, value: Any) -> Iterator[str]:
    """Say what arl calls what other systems call `name`, or the fields of such a section."""
    for ours, theirs in _other_names().items():
        if name in theirs:
            yield f"in arl, {name} is {ours}"
    if isinstance(value, dict):
        for field, inner in value.items():
            yield from _translations(str(field), inner)


@functools.cache
def _other_names() -> dict[str, list[str]]:
    return {ours: theirs.split() for ours, theirs in load_yaml(OTHER_SYSTEMS.read_text()).items()}


def _meant(given: str, names: list[str], fields: Iterable[str] = ()) -> str:
    """Ask whether the nearest name was meant.

    Args:
        fields: section.field of other sections; one is named as well, unless a name is very near.
    """
    near = difflib.get_close_matches(given, names, n=1)
    if not difflib.get_close_matches(given, near, cutoff=NEAR):
        by_word = {field: field.rpartition(".")[2] for field in fields}
        words = difflib.get_close_matches(given, by_word.values(), n=1, cutoff=NEAR)
        near += [field for field, word in by_word.items() if word in words]
    return f"did you mean {' or '.join(near)}? " if near else ""


def _all_fields(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield section.field of every field below a section."""
    for name, field in given_fields(model).items():
        yield f"{prefix}{name}"
        for inner in inner_sections(field.annotation):
            yield from _all_fields(inner, f"{prefix}{name}.")


def _valid_names(section: Key, values: dict[str, Any]) -> list[str]:
    """List the fields of a section of the recipe, or of the options of its task."""
    if section[:1] == ("data",) and section[-1] == "options":
        data = values["data"][section[1]] if isinstance(section[1], int) else values["data"]
        return list(task_options(with_task(data)["task"]).model_fields)
    section = tuple(part for part in section if not isinstance(part, int))
    model: type[BaseModel] = Recipe
    for part in section:
        field = model.model_fields.get(str(part))
        inner = inner_sections(field.annotation) if field is not None else []
        if not inner:  # a section inside a task's options
            return []
        model = inner[0]
        if issubclass(model, ChosenSection):
            model = model.implementation(values[str(part)])
    return list(given_fields(model))
