"""Group runs into arms: runs of one recipe, whatever their seed, name and output. What differs names the arm."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from arl.report.read_runs import LoadedRun

STALENESS = "rollout.staleness"
INFINITY = "∞"
LAG = "rollout.lag"
KIND = ".kind"
FOLLOWS = {"rollout.max_groups": STALENESS}  # a cap takes the place of no bound; else fields follow from a kind
NOT_OF_AN_ARM = ("seed", "name")
NOT_OF_AN_ARM_SECTIONS = ("output.",)
MAX_FIELDS = 4  # in the name of an arm
LONGEST_VALUE = 40  # characters of a value in the name of an arm


class Arm(Struct, frozen=True, kw_only=True):
    """Hold the runs of one recipe, in the order of their seeds."""

    number: int  # its place among the arms, which is its color
    settings: dict[str, Any]  # section.field -> value, of the fields in which arms differ
    names: dict[str, str]  # the same fields -> how they are called in texts
    runs: list[LoadedRun]
    differing: tuple[str, ...] = ()  # every field in which arms differ, those too that follow from another
    own_name: str = ""  # used where settings are too many, or none, to name the arm

    @property
    def name(self) -> str:
        """Return what sets the arm apart, as in `staleness=8, decoupled_ppo, loglinear`."""
        if self.own_name:
            return self.own_name
        settings = [self.setting(field, value) for field, value in shown(self.own_settings)]
        return ", ".join(settings)

    def setting(self, field: str, value: Any) -> str:
        """Write one setting, as in `staleness=8` or `ppo`."""
        name = "" if self.says_itself(field, value) else f"{self.names[field]}="
        return f"{name}{show(field, value)}"

    def says_itself(self, field: str, value: Any) -> bool:
        """Return whether a value needs no name beside it: a kind, or a word of the section that the kind is of."""
        kind = f"{field.rpartition('.')[0]}{KIND}"
        return isinstance(value, str) and "." not in self.names[field] and kind in self.settings

    @property
    def own_settings(self) -> dict[str, Any]:
        """Return its settings without fields that its recipe does not have, because they belong to another kind."""
        recipe = self.runs[0].recipe
        return {field: value for field, value in self.settings.items() if field in recipe or value is not None}

    @property
    def seeds(self) -> list[int]:
        """Return the seeds of its runs."""
        return [run.seed for run in self.runs]


class Arms(Struct, frozen=True):
    """Hold the arms of a report, and what has to be said about them."""

    arms: list[Arm]
    notes: list[str]


def make_arms(runs: Sequence[LoadedRun]) -> Arms:
    """Group runs into arms, in the order of their settings."""
    recipes = [run.recipe for run in runs]
    differing = _differing(recipes)
    groups: dict[tuple[bytes, ...], list[LoadedRun]] = {}
    for run in runs:
        values = tuple(field_value(run.recipe, field) for field in differing)
        groups.setdefault(values, []).append(run)
    fields = _telling(differing, recipes)
    ordered = sorted(groups.values(), key=lambda group: _places(group[0].recipe, fields))
    notes: list[str] = []
    names = _short_names(fields)
    arms = []
    for number, group in enumerate(ordered):
        recipe = group[0].recipe
        arm = Arm(
            number=number,
            settings={field: _value_or_section(recipe, field) for field in fields},
            names=names,
            differing=tuple(differing),
            runs=_one_of_each_seed(group, notes),
        )
        arms.append(arm)
    is_named_by_fields = 0 < len(fields) <= MAX_FIELDS and len({arm.name for arm in arms}) == len(arms)
    if not is_named_by_fields:
        arms = [
            msgspec.structs.replace(arm, own_name=_own_name(group, ordered))
            for arm, group in zip(arms, ordered, strict=True)
        ]
    return Arms(arms, notes)


def _places(recipe: dict[str, Any], fields: Sequence[str]) -> list[tuple[int, float, str]]:
    """Return by what the arm of a recipe is sorted."""
    return [order(field, _value_or_section(recipe, field)) for field in fields]


def _value_or_section(recipe: dict[str, Any], field: str) -> Any:
    """Return the value of a field, or its section as a mapping; None where the recipe has neither."""
    if field in recipe:
        return recipe[field]
    prefix = f"{field}."
    return {name.removeprefix(prefix): value for name, value in recipe.items() if name.startswith(prefix)} or None


def _own_name(group: Sequence[LoadedRun], groups: Sequence[Sequence[LoadedRun]]) -> str:
    """Return the name in the recipe, if it is of this group alone; else that of the first run's directory."""
    first = group[0]
    name = first.recipe.get("name")
    names = [other[0].recipe.get("name") for other in groups]
    if name and names.count(name) == 1:
        return str(name)
    return first.name


def show(field: str, value: Any) -> str:
    """Write the value of a field in a few characters; no bound at all is ∞."""
    if value is None:
        return INFINITY if field == STALENESS else "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):  # a section
        fields = [f"{name} {show(name, inner)}" for name, inner in value.items()]
        text = " ".join(fields)
    elif isinstance(value, str):
        text = value
    else:
        text = msgspec.json.encode(value).decode()
    if len(text) <= LONGEST_VALUE:
        return text
    half = LONGEST_VALUE // 2
    return f"{text[: half - 1]}…{text[-half:]}"


def shown(settings: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the settings that say something: a bound and a lag take each other's place, so one of them is left out."""
    left_out = ""
    if STALENESS in settings and LAG in settings:
        left_out = LAG if settings[LAG] is None else STALENESS
    return [(field, value) for field, value in settings.items() if field != left_out]


def order(field: str, value: Any) -> tuple[int, float, str]:
    """Return by what values of a field are sorted: numbers by size, then words; no bound comes after every bound."""
    if value is None:
        rank = 2 if field == STALENESS else 0
        return rank, 0.0, ""
    if isinstance(value, int | float):
        return 1, float(value), ""
    return 1, 0.0, show(field, value)


def is_number(value: Any) -> bool:
    """Return whether a value is a number, which has neighbors in size."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_of_arm(field: str) -> bool:
    return field not in NOT_OF_AN_ARM and not field.startswith(NOT_OF_AN_ARM_SECTIONS)


def _differing(recipes: Sequence[dict[str, Any]]) -> list[str]:
    """Return the fields in which recipes differ, in the order of the recipe.

    A field that a recipe does not have at all, because another version of arl wrote it or because it belongs to another
    kind, is no difference by itself.
    """
    fields: dict[str, None] = {}  # a set that keeps its order
    for recipe in recipes:
        fields |= dict.fromkeys(recipe)
    differing = []
    for field in filter(_is_of_arm, fields):
        values = {field_value(recipe, field) for recipe in recipes if _knows(recipe, field)}
        if len(values) > 1:
            differing.append(field)
    return differing


def _knows(recipe: dict[str, Any], field: str) -> bool:
    """Return whether a recipe has the field, or a value in the place of its section, or a section in its place."""
    if field in recipe:
        return True
    return any(field.startswith(f"{other}.") or other.startswith(f"{field}.") for other in recipe)


def _telling(differing: Sequence[str], recipes: Sequence[dict[str, Any]]) -> list[str]:
    """Return the fields that name arms: none of a section that another one names, none that follows from another."""
    telling = []
    for field in differing:
        is_inside = any(field.startswith(f"{other}.") for other in differing)
        if not is_inside and not _follows(field, differing, recipes):
            telling.append(field)
    return telling


def field_value(recipe: dict[str, Any], field: str) -> bytes:
    """Return a value that can be compared; b"" for a field that the recipe lacks."""
    return exact(recipe[field]) if field in recipe else b""


def exact(value: Any) -> bytes:
    """Return a value that can be compared and hashed."""
    return msgspec.json.encode(value, order="sorted")


def _follows(field: str, differing: Sequence[str], recipes: Sequence[dict[str, Any]]) -> bool:
    """Return whether the value of a field follows from another field that differs."""
    owner = FOLLOWS.get(field, f"{field.rpartition('.')[0]}.kind")
    if field == owner or owner not in differing:
        return False
    values: dict[bytes, set[bytes]] = {}
    for recipe in recipes:
        of_owner = values.setdefault(field_value(recipe, owner), set())
        of_owner.add(field_value(recipe, field))
    return all(len(of_owner) == 1 for of_owner in values.values())


def _short_names(fields: Sequence[str]) -> dict[str, str]:
    """Call each field by its last part, or by its whole name if another one ends alike."""
    last = {field: field.rpartition(".")[2] for field in fields}
    uses = Counter(last.values())
    return {field: name if uses[name] == 1 else field for field, name in last.items()}


def _one_of_each_seed(group: Sequence[LoadedRun], notes: list[str]) -> list[LoadedRun]:
    """Keep one run of each seed: a finished one before others, then the longest, then the first by name."""
    by_seed: dict[int, LoadedRun] = {}
    best_first = sorted(group, key=lambda run: (run.status != "finished", -run.last_step, run.name))
    for run in best_first:
        kept = by_seed.setdefault(run.seed, run)
        if kept is not run:
            notes.append(f"{run.name}: has the recipe and the seed ({run.seed}) of {kept.name}; only that one counts")
    return [by_seed[seed] for seed in sorted(by_seed)]
