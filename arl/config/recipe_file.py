"""Read recipe files: YAML in, a validated Recipe out, and errors that point at the line.

bytes ─► values, and the line of every key ─► `--set` overrides ─► Recipe, or every mistake at once
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from arl.config.data_section import OF_FILES
from arl.config.mistakes import explain
from arl.config.objective_section import AdvantageSection, ObjectiveSection
from arl.config.recipe import Recipe
from arl.config.yaml_loader import Key, YamlError, dump_yaml, load_yaml, read_document
from arl.errors import RecipeError

ALTERNATIVES = [
    (("rollout", "staleness"), ("rollout", "lag")),
    (("model", "path"), ("model", "tiny")),
    (("data", "path"), ("data", "task")),
]
"""Fields that take each other's place. An override of one replaces the file's value of the others."""

OF_ANOTHER_TASK = ("options", *OF_FILES)
"""Fields of `data` that belong to its task or files. An override of data.task drops them."""


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read `path`, apply `a.b=x` overrides in order, and validate.

    Raises:
        RecipeError: naming file, line, field, value, rule and the nearest valid name, for every mistake found.
    """
    values, places = read_with_places(path)
    if is_sweep_file(values):
        raise RecipeError(f"{path}: is a sweep file, which stands for many runs; start them by `arl sweep {path}`")
    return make_recipe(values, overrides, path, places)


def is_sweep_file(values: Mapping[str, Any]) -> bool:
    """Return whether these are a sweep file's values: it names a recipe by a field that recipes lack."""
    return "recipe" in values


def read_with_places(path: Path) -> tuple[dict[str, Any], dict[Key, str]]:
    """Read a YAML file of sections: its values, and file and line of every key.

    Raises:
        RecipeError: it cannot be read, is no YAML that arl.config.yaml_loader reads, or is not a mapping.
    """
    try:
        document = read_document(path.read_bytes())
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror}); give the path of a recipe YAML") from error
    except YamlError as error:
        place = path if error.line is None else f"{path}:{error.line}"
        raise RecipeError(f"{place}: {error.rule}") from error
    if not isinstance(document.values, dict):
        kind = type(document.values).__name__
        raise RecipeError(f"{path}: a recipe is a mapping of sections; this is {kind}")
    places = {key: f"{path}:{line}" for key, line in document.lines.items()}
    return document.values, places


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
        places.setdefault(key[:1], places[key])  # of a section that the file lacks
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        lines = [explain(mistake, values, places, path) for mistake in error.errors()]
        raise RecipeError("\n".join(lines)) from error


def dump_recipe(recipe: Recipe) -> str:
    """Write the fully resolved recipe as YAML; `load_recipe` of it gives the same recipe."""
    return dump_yaml(recipe.model_dump(mode="json"))


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (section.field, its value in one, in the other) for every field in which two dumped recipes differ."""
    one = {field: value for field, value in leaves(theirs) if value != {}}
    other = {field: value for field, value in leaves(ours) if value != {}}
    for field in sorted(one.keys() | other.keys()):
        a = one.get(field)
        b = other.get(field)
        if a != b:
            yield field, a, b


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of everything that is no section; an empty section is a value.

    >>> dict(leaves({"seed": 1, "model": {"path": "m", "options": {}}}))
    {'seed': 1, 'model.path': 'm', 'model.options': {}}
    """
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _parse_override(override: str) -> tuple[Key, Any]:
    """Split `a.b=x` into the key (a, b) and the YAML value x."""
    dotted, equals, text = override.partition("=")
    key = tuple(dotted.strip().split("."))
    if not equals or not all(key):
        raise RecipeError(f"--set {override}: write it as section.field=value")
    try:
        return key, load_yaml(text)
    except YamlError as error:
        raise RecipeError(f"--set {override}: the value is not read: {error.rule}") from error


def _make_room(values: dict[str, Any], overrides: Iterable[tuple[Key, Any]]) -> None:
    """Remove from the file's values what an override takes the place of, unless another override names it as well."""
    given = {key: value for key, value in overrides if value is not None}
    given_fields = {key[:2] for key in given}
    named_fields = {key[:2] for key, _ in overrides}
    for alternatives in ALTERNATIVES:
        if given_fields.intersection(alternatives):
            for section, name in set(alternatives) - named_fields:
                _section(values, section).pop(name, None)
    task = given.get(("data", "task"))
    if task is not None and task != _section(values, "data").get("task"):
        for name in OF_ANOTHER_TASK:
            _section(values, "data").pop(name, None)
    for chosen in (ObjectiveSection, AdvantageSection):
        kind = given.get((chosen.SECTION, "kind"))
        kind_before = _section(values, chosen.SECTION).get("kind", chosen.DEFAULT)
        if kind is not None and kind != kind_before:
            values[chosen.SECTION] = {}  # the file's fields belong to the kind it had


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a section of the file; an empty one where the file has something else in its place."""
    section = values.get(name)
    return section if isinstance(section, dict) else {}


def _set(values: dict[str, Any], key: Key, value: Any, override: str) -> None:
    section: Any = values
    *outer, last = key
    for part, inner in zip(outer, key[1:], strict=True):
        number = int(part) if isinstance(section, list) else part  # one source among several
        if isinstance(section, dict) and section.get(part) is None:
            section[part] = {}
        section = section[number]
        is_element = isinstance(section, list) and inner in [str(i) for i in range(len(section))]
        if not isinstance(section, dict) and not is_element:
            raise RecipeError(f"--set {override}: {part} is a value, not a section")
    section[int(last) if isinstance(section, list) else last] = value
