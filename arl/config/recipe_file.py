"""Recipe files: YAML in, a validated Recipe out, and errors that point at the line.

text ─► nodes (line of every key) ─► values ─► `--set` overrides ─► Recipe, or every mistake at once
"""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from arl.config.chosen_section import ChosenSection
from arl.config.recipe import Recipe
from arl.errors import RecipeError

Key = tuple[str | int, ...]


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read `path`, apply `a.b=x` overrides in order, and validate.

    Raises:
        RecipeError: naming file, line, field, value, rule and the nearest valid name, for every mistake found.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror}); give the path of a recipe YAML") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(node, yaml.MappingNode) or not isinstance(values, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of sections; this is {type(values).__name__}")
    places = {key: f"{path}:{line}" for key, line in _lines(node, (), path).items()}
    for override in overrides:
        places[_apply(values, override)] = f"--set {override}"
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError("\n".join(_explain(e, values, places, path) for e in error.errors())) from error


def dump_recipe(recipe: Recipe) -> str:
    """The fully resolved recipe as YAML; `load_recipe` of it gives the same recipe."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)


def _lines(node: yaml.Node, key: Key, path: Path) -> dict[Key, int]:
    lines: dict[Key, int] = {}
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            child = (*key, name.value)
            line = name.start_mark.line + 1
            if child in lines:
                raise RecipeError(f"{path}:{line}: {_dotted(child)} is given twice; keep one")
            lines |= {child: line} | _lines(value, child, path)
    return lines


def _apply(values: dict[str, Any], override: str) -> Key:
    dotted, equals, text = override.partition("=")
    key = tuple(dotted.strip().split("."))
    if not equals or not all(key):
        raise RecipeError(f"--set {override}: write it as section.field=value")
    _drop_fields_of_another_kind(values, key, text)
    section = values
    for part in key[:-1]:
        if section.get(part) is None:
            section[part] = {}
        section = section[part]
        if not isinstance(section, dict):
            raise RecipeError(f"--set {override}: {part} is a value, not a section")
    try:
        section[key[-1]] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"--set {override}: the value is not valid YAML: {error}") from error
    return key


def _drop_fields_of_another_kind(values: dict[str, Any], key: Key, kind: str) -> None:
    """Empty a section whose kind is changed by an override, because its fields are those of the kind it had."""
    name = str(key[0])
    field = Recipe.model_fields.get(name)
    if key[1:] != ("kind",) or field is None or not isinstance(values.get(name), dict):
        return
    section = field.annotation
    if not isinstance(section, type) or not issubclass(section, ChosenSection):
        return
    if values[name].get("kind", section.DEFAULT) != kind.strip():
        values[name] = {}


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(section.field, its value in one, in the other), for every field in which two dumped recipes differ."""
    one, other = dict(_leaves(theirs)), dict(_leaves(ours))
    for field in sorted(one.keys() | other.keys()):
        a, b = one.get(field), other.get(field)
        if a != b:
            yield field, a, b


def _leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _explain(error: Any, values: dict[str, Any], places: dict[Key, str], path: Path) -> str:
    key: Key = error["loc"]
    rule = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":  # a rule between fields: its message begins with the field at fault
        key = tuple(rule.split(maxsplit=1)[0].rstrip(":").split("."))
        return f"{_place(key, places, path)}: {rule}"
    place = _place(key, places, path)
    if error["type"] == "extra_forbidden":
        return f"{place}: {_dotted(key)}: unknown key{_nearest(key, values)}"
    if error["type"] == "missing":
        return f"{place}: {_dotted(key)}: required, and missing"
    return f"{place}: {_dotted(key)} = {error['input']!r}: {rule}"


def _place(key: Key, places: dict[Key, str], path: Path) -> str:
    return next((places[key[:n]] for n in range(len(key), 0, -1) if key[:n] in places), str(path))


def _nearest(key: Key, values: dict[str, Any]) -> str:
    names = _valid_names(key[:-1], values)
    close = difflib.get_close_matches(str(key[-1]), names, n=1)
    return f"; did you mean {close[0]}?" if close else f"; valid: {', '.join(names)}"


def _valid_names(section: Key, values: dict[str, Any]) -> list[str]:
    model: type[BaseModel] = Recipe
    for part in section:
        annotation = model.model_fields[str(part)].annotation
        options = [a for a in (annotation, *get_args(annotation)) if isinstance(a, type)]
        model = next(a for a in options if issubclass(a, BaseModel))
        if issubclass(model, ChosenSection):
            model = model.implementation(values[str(part)])
    return list(model.model_fields)


def _dotted(key: Key) -> str:
    return ".".join(map(str, key))
