"""Write a mistake of a recipe as place, field, value, rule and the nearest valid name."""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from arl.config.chosen_section import ChosenSection
from arl.config.data_section import task_options
from arl.config.mistakes import Key, Mistake
from arl.config.recipe import Recipe
from arl.config.section import inner_sections

ALIKE = 0.8  # of 1: how much a field of another section must be written alike to be suggested
LONGEST_VALUE = 300  # characters of a value that are shown


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
