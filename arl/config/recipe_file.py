"""Read recipe files: YAML in, a validated Recipe out, and errors that point at the line.

text ─► nodes (line of every key) ─► values ─► `--set` overrides ─► Recipe, or every mistake at once
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from arl.config.chosen_section import ChosenSection
from arl.config.data_section import OF_FILES, task_options
from arl.config.leaves import leaves
from arl.config.mistakes import Key, Mistake, find_mistakes
from arl.config.recipe import Recipe
from arl.config.section import inner_sections
from arl.config.yaml_loader import MOST_BYTES, compose, dump_yaml, explain, load_yaml, values_of
from arl.errors import RecipeError
from arl.files import read_regular

ALIKE = 0.8  # of 1: how much a field of another section must be written alike to be suggested

ALTERNATIVES: list[tuple[Key, ...]] = [
    (("rollout", "staleness"), ("rollout", "lag")),
    (("model", "path"), ("model", "tiny")),
    (("data", "path"), ("data", "task")),
]
"""Fields that take each other's place. An override of one replaces the file's value of the others."""

OF_ANOTHER_FIELD: dict[Key, Key] = {("data", name): ("data", "task") for name in ("options", *OF_FILES)}
"""Fields whose content belongs to the value of another field. An override of the latter drops the file's content."""


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read `path`, apply `a.b=x` overrides in order, and validate.

    Raises:
        RecipeError: naming file, line, field, value, rule and the nearest valid name, for every mistake found.
    """
    values, places = read_with_places(path)
    if isinstance(values.get("recipe"), str):
        raise RecipeError(f"{path}: is a sweep file, which stands for many runs; start them by `arl sweep {path}`")
    return make_recipe(values, overrides, path, places)


def read_with_places(path: Path) -> tuple[dict[str, Any], dict[Key, str]]:
    """Read a YAML file of sections: its values, and file and line of every key.

    Raises:
        RecipeError: it cannot be read, is no YAML that arl.config.yaml_loader reads, or is not a mapping.
    """
    node, values = _read(path)
    lines = _lines(node, ())
    places = {key: f"{path}:{line}" for key, line in lines.items()}
    return values, places


def make_recipe(
    values: dict[str, Any],
    overrides: Sequence[str],
    path: Path,
    places: Mapping[Key, str] = MappingProxyType({}),
) -> Recipe:
    """Apply `a.b=x` overrides to the values of a recipe, in order, and validate.

    Args:
        path: where the values come from, for messages.
        places: file and line of every key, for messages.

    Raises:
        RecipeError: see `load_recipe`.
    """
    places = dict(places)
    parsed = [_parse_override(override) for override in overrides]
    _make_room(values, parsed)
    for override, (key, value) in zip(overrides, parsed, strict=True):
        _set(values, key, value, override)
        places[key] = f"--set {override}"
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        lines = [_explain(mistake, values, places, path) for mistake in find_mistakes(error, values)]
        raise RecipeError("\n".join(lines)) from error


def dump_recipe(recipe: Recipe) -> str:
    """Write the fully resolved recipe as YAML; `load_recipe` of it gives the same recipe."""
    return dump_yaml(recipe.model_dump(mode="json"))


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (section.field, its value in one, in the other) for every field in which two dumped recipes differ."""
    one = _fields(theirs)
    other = _fields(ours)
    for field in sorted(one.keys() | other.keys()):
        a = one.get(field)
        b = other.get(field)
        if a != b:
            yield field, a, b


def _fields(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the value of every section.field; an empty section has none."""
    return {field: value for field, value in leaves(recipe) if value != {}}


def _read(path: Path) -> tuple[yaml.MappingNode, dict[str, Any]]:
    """Parse the file once, for the line of every key and for the values."""
    try:
        text = read_regular(path, MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror}); give the path of a recipe YAML") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 ({error}); save it as UTF-8") from error
    try:
        node = compose(text)
        values = values_of(node)
    except yaml.YAMLError as error:
        line, wrong = explain(error)
        place = path if line is None else f"{path}:{line}"
        raise RecipeError(f"{place}: not valid YAML: {wrong}") from error
    if not isinstance(node, yaml.MappingNode) or not isinstance(values, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of sections; this is {type(values).__name__}")
    return node, values


def _lines(node: yaml.Node, key: Key) -> dict[Key, int]:
    """Return the line of every key below `node`, which holds no cycle."""
    lines: dict[Key, int] = {}
    if not isinstance(node, yaml.MappingNode):
        return lines
    for name, value in node.value:
        child = (*key, name.value)
        lines[child] = name.start_mark.line + 1
        lines |= _lines(value, child)
    return lines


def _parse_override(override: str) -> tuple[Key, Any]:
    """Split `a.b=x` into the key (a, b) and the YAML value x."""
    dotted, equals, text = override.partition("=")
    key = tuple(dotted.strip().split("."))
    if not equals or not all(key):
        raise RecipeError(f"--set {override}: write it as section.field=value")
    try:
        return key, load_yaml(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"--set {override}: the value is not valid YAML: {explain(error)[1]}") from error


def _make_room(values: dict[str, Any], overrides: Iterable[tuple[Key, Any]]) -> None:
    """Remove from the file's values what an override takes the place of, unless another override names it as well."""
    given = {key: value for key, value in overrides if value is not None}
    given_fields = {key[:2] for key in given}
    named_fields = {key[:2] for key, _ in overrides}
    for alternatives in ALTERNATIVES:
        if given_fields.intersection(alternatives):
            for field in set(alternatives) - named_fields:
                _remove(values, field)
    for field, owner in OF_ANOTHER_FIELD.items():
        if owner in given and given[owner] != _get(values, owner):
            _remove(values, field)
    for key, kind in given.items():
        _drop_fields_of_another_kind(values, key, kind)


def _drop_fields_of_another_kind(values: dict[str, Any], key: Key, kind: Any) -> None:
    """Empty the file's section if an override changes its kind, because its fields belong to the kind it had."""
    name = str(key[0])
    field = Recipe.model_fields.get(name)
    if key[1:] != ("kind",) or field is None:
        return
    section = field.annotation
    if not isinstance(section, type) or not issubclass(section, ChosenSection):
        return
    kind_before = _get(values, key) or section.DEFAULT
    if kind_before != kind:
        values[name] = {}


def _get(values: dict[str, Any], key: Key) -> Any:
    section = values.get(str(key[0]))
    if not isinstance(section, dict):
        return None
    return section.get(key[1])


def _remove(values: dict[str, Any], key: Key) -> None:
    section = values.get(str(key[0]))
    if isinstance(section, dict):
        section.pop(key[1], None)


def _set(values: dict[str, Any], key: Key, value: Any, override: str) -> None:
    section: Any = values
    for part in key[:-1]:
        if section.get(part) in (None, True):  # `warmup: true` stands for the section with its defaults
            section[part] = {}
        section = section[part]
        if not isinstance(section, dict):
            raise RecipeError(f"--set {override}: {part} is a value, not a section")
    section[key[-1]] = value


def _explain(mistake: Mistake, values: dict[str, Any], places: dict[Key, str], path: Path) -> str:
    """Write a mistake as place, field, value, rule and remedy."""
    key, kind, value, rule = mistake
    if kind == "value_error":  # a rule between fields: its message begins with the field at fault
        field = rule.split(maxsplit=1)[0].rstrip(":")
        named = tuple(field.split("."))
        return f"{place_of(named, places, path)}: {rule}"
    place = place_of(key, places, path)
    if kind == "extra_forbidden":
        return f"{place}: {_dotted(key)}: unknown key{_nearest(key, values)}"
    if kind == "missing":
        return f"{place}: {_dotted(key)}: required, and missing"
    return f"{place}: {_dotted(key)} = {value!r}: {rule}"


def place_of(key: Key, places: Mapping[Key, str], path: Path) -> str:
    """Return the place of the key, or of the innermost section around it that the file or an override names."""
    for length in range(len(key), 0, -1):
        around = key[:length]
        if around in places:
            return places[around]
    return str(path)


def _nearest(key: Key, values: dict[str, Any]) -> str:
    """Suggest the valid name that is nearest to the last part of `key`, or all of them."""
    *section, last = key
    unknown = str(last)
    names = _valid_names(tuple(section), values)
    close = difflib.get_close_matches(unknown, names, n=1)
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
    if section == ("data", "options"):
        options = task_options(values["data"]["task"])
        return list(options.model_fields)
    model: type[BaseModel] = Recipe
    for part in section:
        field = model.model_fields[str(part)]
        (model,) = inner_sections(field.annotation)
        if issubclass(model, ChosenSection):
            model = model.implementation(values[str(part)])
    return list(model.model_fields)


def _dotted(key: Key) -> str:
    return ".".join(map(str, key))
