"""Read what a sweep is asked for: a recipe and options of the command line, or a sweep file with all of it.

recipe: ../quickstart-virtual.yaml          # relative to this file
set: {train.steps: 60}                      # in every arm
axes:
  - rollout.staleness: [0, 4, 16]           # one field
  - objective.kind: [ppo, decoupled_ppo]    # fields in one entry change together
    train.learning_rate: [1.5e-4, 3.0e-4]
exclude: [{rollout.staleness: 16, objective.kind: ppo}]
seeds: 3
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct
from pydantic import Field, ValidationError

from arl.config.mistakes import Key, place_of, rule_of
from arl.config.recipe_file import is_sweep_file, leaves, read_with_places
from arl.config.section import MAX_SEED, FilePath, Positive, Section
from arl.config.yaml_loader import YamlError, dump_yaml, load_yaml
from arl.errors import InputError

NAME = r"^[A-Za-z0-9][A-Za-z0-9._=+,-]{0,149}$"
NAME_RULE = "a name consists of letters, digits and ._=+,-, at most 150, and begins with a letter or a digit"
SET_BY_THE_SWEEP = {
    "seed": "every arm runs with each of the seeds; give them by --seeds",
    "name": "the sweep names its runs; name the sweep by --name",
}
NO_AXIS = SET_BY_THE_SWEEP | {
    "output": "it says what is written and how often, which is not what arms are compared by; give it by --set",
}

Axis = list[dict[str, Any]]  # of one field, or of several that change together: for each point the value of each field
Name = Annotated[str, Field(pattern=NAME)]


class SweepFile(Section):
    """Describe a sweep in a file of its own."""

    name: str | None = None
    """Names the sweep's directory; left out: the name of the file does."""
    recipe: FilePath
    """Path of the recipe, relative to this file."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Field -> value in every arm."""
    axes: tuple[dict[str, list[Any]], ...] = ()
    """Each entry is one axis: field -> values. Fields of one entry change together."""
    arms: dict[Name, dict[str, Any]] = Field(default_factory=dict)
    """Name -> settings. Each named arm is combined with every point of the axes."""
    exclude: tuple[dict[str, Any], ...] = ()
    """Combinations to leave out: field -> value or list of values. `arm` stands for the name of a named arm."""
    seeds: Any = None
    """A number of seeds, from 0 on, or a list of them; left out: the recipe's own seed."""
    jobs: Annotated[Positive, Field(strict=True)] | None = None
    """Runs at a time."""


class SweepRequest(Struct, frozen=True, kw_only=True):
    """Hold what a sweep is asked for.

    Args:
        name: of its directory.
        recipe: file of the recipe.
        overrides: `a.b=x`, in every arm.
        named: arms with a name of their own.
        seeds: of every arm; None: the recipe's own.
        jobs: runs at a time; None: one for each core if all runs are of one process each, otherwise one.
    """

    name: str
    recipe: Path
    overrides: list[str]
    axes: list[Axis]
    named: Mapping[str, Mapping[str, Any]]
    exclude: Sequence[Mapping[str, Any]] = ()
    seeds: list[int] | None = None
    jobs: int | None = None


def read_request(
    path: Path,
    *,
    name: str | None = None,
    overrides: Sequence[str] = (),
    axes: Sequence[str] = (),
    paired: Sequence[str] = (),
    seeds: str | None = None,
    jobs: int | None = None,
) -> SweepRequest:
    """Read a recipe or a sweep file, and the options of `arl sweep`, each of which overrides what a sweep file says.

    Raises:
        InputError: a file or an option is wrong.
    """
    values, places = read_with_places(path)
    if is_sweep_file(values):
        file = _read_file(values, places, path)
        recipe = path.parent / file.recipe
        default_name = file.name or path.stem
    else:
        file = SweepFile(recipe=str(path))
        recipe = path
        default_name = f"{values.get('name', path.stem)}-sweep"
    if not re.fullmatch(NAME, name or default_name):
        raise InputError(f"{path}: the sweep would be named {name or default_name}: {NAME_RULE}; give one by --name")
    given_seeds = file.seeds
    place = f"{place_of(('seeds',), places, path)}: seeds = {given_seeds!r}"
    if seeds is not None:
        place = f"--seeds {seeds!r}"
        given_seeds = _parse_seeds(seeds, place)
    all_axes = _axes(file, axes, paired, path)
    all_overrides = [*(write_override(field, value) for field, value in file.set.items()), *overrides]
    _validate_fields(all_axes, file.arms, all_overrides)
    return SweepRequest(
        name=name or default_name,
        recipe=recipe,
        overrides=all_overrides,
        axes=all_axes,
        named=file.arms,
        exclude=file.exclude,
        seeds=_seeds(given_seeds, place),
        jobs=jobs or file.jobs,
    )


def write_override(field: str, value: Any) -> str:
    """Write a setting as `--set` reads it."""
    return f"{field}={dump_yaml(value, flow=True)}"


def parse_axis(text: str, option: str = "--axis") -> tuple[str, list[Any]]:
    """Split `a.b=1,[2,3],{c: 4}` into the field a.b and its values 1, [2, 3] and {c: 4}.

    Raises:
        InputError: there is no field, or the values are not valid YAML.
    """
    field, equals, listed = text.partition("=")
    if not equals or not field.strip():
        raise InputError(f"{option} {text}: write it as section.field=value,value")
    try:
        values = load_yaml(f"[{listed}]")  # where commas separate, unless brackets, braces or quotes hold them
    except YamlError as error:
        raise InputError(f"{option} {text}: the values are not read: {error.rule}") from error
    return field.strip(), values


def make_axis(values: Mapping[str, Sequence[Any]], place: str) -> Axis:
    """Make an axis of fields that change together; usually it is one field.

    Raises:
        InputError: there are no values, or not equally many of every field, or a point is given twice.
    """
    lengths = {field: len(listed) for field, listed in values.items()}
    if not lengths or 0 in lengths.values():
        raise InputError(f"{place}: an axis has at least one field and one value")
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{field} has {count}" for field, count in lengths.items())
        raise InputError(f"{place}: fields that change together need equally many values: {counts}")
    points = [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
    for index, point in enumerate(points):
        if point in points[:index]:
            equal = points[points.index(point)]  # 1 and 1.0, or 1 and true, are one value
            raise InputError(f"{place}: {equal} and {point} are the same point; give each value once")
    return points


def _read_file(values: dict[str, Any], places: Mapping[Key, str], path: Path) -> SweepFile:
    try:
        return SweepFile.model_validate(values)
    except ValidationError as error:
        lines = [_explain(mistake, places, path) for mistake in error.errors()]
        raise InputError("\n".join(lines)) from error


def _explain(mistake: Any, places: Mapping[Key, str], path: Path) -> str:
    """Write one of pydantic's errors as place, field, value and rule."""
    key = tuple(part for part in mistake["loc"] if part != "[key]")  # pydantic's mark of a mapping's key
    rules = {
        "extra_forbidden": f"unknown key; a sweep file has {', '.join(SweepFile.model_fields)}",
        "string_pattern_mismatch": NAME_RULE,
    }
    rule = rules.get(mistake["type"]) or rule_of(mistake)
    field = ".".join(map(str, key))
    return f"{place_of(key, places, path)}: {field} = {mistake['input']!r}: {rule}"


def _axes(file: SweepFile, axes: Sequence[str], paired: Sequence[str], path: Path) -> list[Axis]:
    """Take the axes of the file, then those of the options; an option takes the place of the file's axis.

    Raises:
        InputError: a field of --paired is given twice, or see make_axis.
    """
    of_options = []
    for text in axes:
        field, values = parse_axis(text)
        of_options.append(make_axis({field: values}, f"--axis {text}"))
    together: dict[str, list[Any]] = {}
    for text in paired:
        field, values = parse_axis(text, "--paired")
        if field in together:
            raise InputError(f"--paired {text}: {field} is given twice; give all of its values in one --paired")
        together[field] = values
    if together:
        of_options.append(make_axis(together, f"--paired {' --paired '.join(paired)}"))
    given = {field for axis in of_options for field in axis[0]}
    of_file = [make_axis(entry, f"{path}: axes") for entry in file.axes if not given.intersection(entry)]
    return of_file + of_options


def _validate_fields(axes: Sequence[Axis], named: Mapping[str, Mapping[str, Any]], overrides: Sequence[str]) -> None:
    """Raise InputError where a field of an axis or an arm may not vary, or one of the overrides may not be set."""
    points = [point for axis in axes for point in axis]
    for given in (*points, *named.values()):
        for field in dict(leaves(given)):
            section = field.partition(".")[0]
            if section in NO_AXIS:
                raise InputError(f"axis {field}: {NO_AXIS[section]}")
    for override in overrides:
        section = override.partition("=")[0].strip()
        if section in SET_BY_THE_SWEEP:
            raise InputError(f"--set {override}: {SET_BY_THE_SWEEP[section]}")


def _seeds(given: Any, place: str) -> list[int] | None:
    """Return the seeds of a number of seeds, or of a list of them; None: none are given.

    Raises:
        InputError: it is neither, or a seed is too large, or given twice.
    """
    if given is None:
        return None
    if type(given) is int and given > 0:
        return list(range(given))
    are_seeds = isinstance(given, list) and all(type(seed) is int and 0 <= seed <= MAX_SEED for seed in given)
    if not are_seeds or not given or len(set(given)) < len(given):
        raise InputError(f"{place}: give a number of seeds, or a list like 0,3,5, each once and from 0 to {MAX_SEED}")
    return list(given)


def _parse_seeds(option: str, place: str) -> Any:
    """Return what the option lists; of a list with one entry, that entry, which is a number of seeds.

    Raises:
        InputError: it is no YAML.
    """
    try:
        listed = load_yaml(f"[{option}]")
    except YamlError as error:
        raise InputError(f"{place}: give a number of seeds, or a list like 0,3,5") from error
    return listed[0] if len(listed) == 1 else listed
