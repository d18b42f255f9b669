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
from arl.config.recipe_file import is_sweep_file, read_with_places
from arl.config.section import LARGEST_SEED, FilePath, Positive, Section
from arl.config.yaml_loader import YamlError, load_yaml
from arl.errors import InputError
from arl.sweep.axes import (
    SweepAxis,
    make_axis,
    parse_axis,
    refuse_reserved_fields,
    write_override,
)

NAME = r"^[A-Za-z0-9][A-Za-z0-9._=+,-]{0,149}$"
NAME_RULE = "a name consists of letters, digits and ._=+,-, at most 150, and begins with a letter or a digit"
Name = Annotated[str, Field(pattern=NAME)]


class SweepFile(Section):
    """Describe a sweep in a file of its own."""

    name: Name | None = None
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
    axes: list[SweepAxis]
    named: Mapping[str, Mapping[str, Any]]
    exclude: Sequence[Mapping[str, Any]] = ()
    seeds: list[int] | None = None
    jobs: int | None = None


class SweepOptions(Struct, frozen=True, kw_only=True):
    """Hold the options of `arl sweep`. Each of them overrides what a sweep file says."""

    name: str | None = None
    overrides: Sequence[str] = ()
    axes: Sequence[str] = ()
    paired: Sequence[str] = ()
    seeds: str | None = None
    jobs: int | None = None


def read_request(path: Path, options: SweepOptions) -> SweepRequest:
    """Read a recipe or a sweep file, and the options.

    Raises:
        InputError: a file or an option is wrong.
    """
    values, places = read_with_places(path)
    if is_sweep_file(values):
        file = _check_file(values, places, path)
        recipe = path.parent / file.recipe
        name = file.name or path.stem
    else:
        file = SweepFile(recipe=str(path))
        recipe = path
        name = f"{values.get('name', path.stem)}-sweep"
    axes = _axes(file, options, path)
    of_file = [write_override(field, value) for field, value in file.set.items()]
    refuse_reserved_fields(axes, file.arms, [*of_file, *options.overrides])
    return SweepRequest(
        name=_name(options.name, name, path),
        recipe=recipe,
        overrides=[*of_file, *options.overrides],
        axes=axes,
        named=file.arms,
        exclude=file.exclude,
        seeds=_seeds(file.seeds, options.seeds, place_of(("seeds",), places, path)),
        jobs=options.jobs or file.jobs,
    )


def _name(option: str | None, default: str, path: Path) -> str:
    """Return the name of the sweep.

    Args:
        default: the name where the option gives none.

    Raises:
        InputError: it cannot be the name of a directory.
    """
    if option is None and not re.fullmatch(NAME, default):
        raise InputError(f"{path}: the sweep would be named {default}: {NAME_RULE}; give another name by --name")
    if option is not None and not re.fullmatch(NAME, option):
        raise InputError(f"--name {option}: {NAME_RULE}")
    return option or default


def _check_file(values: dict[str, Any], places: Mapping[Key, str], path: Path) -> SweepFile:
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


def _axes(file: SweepFile, options: SweepOptions, path: Path) -> list[SweepAxis]:
    """Take the axes of the file, then those of the options; an option takes the place of the file's axis."""
    of_file = [make_axis(entry, f"{path}: axes") for entry in file.axes]
    of_options = [
        make_axis({field: values}, f"--axis {text}") for text in options.axes for field, values in [parse_axis(text)]
    ]
    if options.paired:
        of_options.append(_paired_axis(options.paired))
    given = {field for axis in of_options for field in axis.fields}
    kept = [axis for axis in of_file if not given.intersection(axis.fields)]
    return kept + of_options


def _paired_axis(texts: Sequence[str]) -> SweepAxis:
    """Make one axis of all `--paired` options.

    Raises:
        InputError: a field is given twice, or see make_axis.
    """
    together: dict[str, list[Any]] = {}
    for text in texts:
        field, values = parse_axis(text, "--paired")
        if field in together:
            raise InputError(f"--paired {text}: {field} is given twice; give all of its values in one --paired")
        together[field] = values
    return make_axis(together, f"--paired {' --paired '.join(texts)}")


def _seeds(of_file: Any, option: str | None, place: str) -> list[int] | None:
    """Read a number of seeds, or a list of them; None: neither the file nor the option gives any.

    Args:
        place: of the file's seeds, for messages.

    Raises:
        InputError: it is neither, or a seed is too large, or given twice.
    """
    if of_file is None and option is None:
        return None
    seeds = of_file
    given = f"{place}: seeds = {of_file!r}"
    if option is not None:
        seeds = _parse_seeds(option)
        given = f"--seeds {option!r}"
    if type(seeds) is int and seeds > 0:
        return list(range(seeds))
    are_seeds = isinstance(seeds, list) and all(type(seed) is int and 0 <= seed <= LARGEST_SEED for seed in seeds)
    if not are_seeds or not seeds or len(set(seeds)) < len(seeds):
        raise InputError(
            f"{given}: give a number of seeds, or a list like 0,3,5, each once and from 0 to {LARGEST_SEED}"
        )
    return list(seeds)


def _parse_seeds(option: str) -> Any:
    """Return what the option lists; of a list with one entry, that entry, which is a number of seeds.

    Raises:
        InputError: it is no YAML.
    """
    try:
        listed = load_yaml(f"[{option}]")
    except YamlError as error:
        raise InputError(f"--seeds {option}: give a number of seeds, or a list like 0,3,5") from error
    return listed[0] if isinstance(listed, list) and len(listed) == 1 else listed
