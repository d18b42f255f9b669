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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct
from pydantic import BeforeValidator, Field, ValidationError

from arl.config.mistakes import place_of, rule_of
from arl.config.recipe_file import is_sweep_file, leaves, read_with_places
from arl.config.section import MAX_SEED, FilePath, Positive, Section
from arl.config.yaml_loader import Key, YamlError, dump_yaml, load_yaml
from arl.errors import InputError

NAME_RULE = "a name consists of letters, digits and ._=+,-, at most 150, and begins with a letter or a digit"
SEEDS_RULE = f"give a number of seeds, or a list like 0,3,5, each once and from 0 to {MAX_SEED}"
SET_BY_THE_SWEEP = {
    "seed": "every arm runs with each of the seeds; give them by --seeds",
    "name": "the sweep names its runs; name the sweep by --name",
}
NO_AXIS = SET_BY_THE_SWEEP | {
    "output": "it says what is written and how often, which is not what arms are compared by; give it by --set",
}

Axis = list[dict[str, Any]]  # of one field, or of several that change together: for each point the value of each field
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._=+,-]{0,149}$")]


def _seeds(given: Any) -> list[int]:
    """Return the seeds of a number of seeds, or of a list of them."""
    seeds = list(range(given)) if type(given) is int else given
    are_seeds = isinstance(seeds, list) and all(type(seed) is int and 0 <= seed <= MAX_SEED for seed in seeds)
    if not are_seeds or not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(SEEDS_RULE)
    return list(seeds)


class SweepFile(Section):
    """Describe a sweep in a file of its own."""

    name: Name
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
    seeds: Annotated[list[int], BeforeValidator(_seeds)] | None = None
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
        values = {"name": path.stem, **values}
    else:
        values = {"name": f"{values.get('name', path.stem)}-sweep", "recipe": path.name}
        places = {}
    for option, given in (("name", name), ("seeds", None if seeds is None else _parse_seeds(seeds)), ("jobs", jobs)):
        if given is not None:
            values[option] = given
            places[option,] = f"--{option}"
    file = _validate(values, places, path)
    all_axes = _axes(file, axes, paired, path)
    all_overrides = [*(write_override(field, value) for field, value in file.set.items()), *overrides]
    _validate_fields(all_axes, file.arms, all_overrides)
    return SweepRequest(
        name=file.name,
        recipe=path.parent / file.recipe,
        overrides=all_overrides,
        axes=all_axes,
        named=file.arms,
        exclude=file.exclude,
        seeds=file.seeds,
        jobs=file.jobs,
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
        InputError: there are no values, or not equally many of every field.
    """
    counts = {len(listed) for listed in values.values()}
    if not counts or 0 in counts:
        raise InputError(f"{place}: an axis has at least one field and one value")
    if len(counts) > 1:
        found = ", ".join(f"{field} has {len(listed)}" for field, listed in values.items())
        raise InputError(f"{place}: fields that change together need equally many values: {found}")
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _validate(values: dict[str, Any], places: Mapping[Key, str], path: Path) -> SweepFile:
    """Raise InputError with place, field, value and rule of each mistake."""
    rules = {
        "extra_forbidden": f"unknown key; a sweep file has {', '.join(SweepFile.model_fields)}",
        "string_pattern_mismatch": NAME_RULE,
    }
    try:
        return SweepFile.model_validate(values)
    except ValidationError as error:
        lines = []
        for mistake in error.errors():
            key = tuple(part for part in mistake["loc"] if part != "[key]")  # pydantic's mark of a mapping's key
            rule = rules.get(mistake["type"]) or rule_of(mistake)
            field = ".".join(map(str, key))
            lines.append(f"{place_of(key, places, path)}: {field} = {mistake['input']!r}: {rule}")
        raise InputError("\n".join(lines)) from error


def _axes(file: SweepFile, axes: Sequence[str], paired: Sequence[str], path: Path) -> list[Axis]:
    """Take the axes of the file, then those of the options; an option takes the place of the file's axis."""
    of_options = [make_axis(dict([parse_axis(text)]), f"--axis {text}") for text in axes]
    together = [parse_axis(text, "--paired") for text in paired]
    if together:
        of_options.append(make_axis(dict(together), f"--paired {' --paired '.join(paired)}"))
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


def _parse_seeds(option: str) -> Any:
    """Return what the option lists; of a list with one entry, that entry, which is a number of seeds."""
    try:
        listed = load_yaml(f"[{option}]")
    except YamlError as error:
        raise InputError(f"--seeds {option}: {SEEDS_RULE}") from error
    return listed[0] if len(listed) == 1 else listed
