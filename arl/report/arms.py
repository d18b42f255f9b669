"""Group runs into arms: runs whose recipes differ in seed, name and output alone. What differs names the arm."""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from arl.report.runs import LoadedRun
from arl.report.statistics import MeanOfSeeds, mean_of_seeds

STALENESS = "rollout.staleness"
INFINITY = "∞"
LAG = "rollout.lag"
KIND = ".kind"
FOLLOWS = {"rollout.max_groups": STALENESS}  # a cap takes the place of no bound; else fields follow from a kind
NOT_OF_AN_ARM = ("seed", "name")
NOT_OF_AN_ARM_SECTIONS = ("output.",)
PLACE = re.compile(r"^\S*[/:](?=\S)")  # of a file or of module:attribute, whose last part is name enough
MAX_FIELDS = 4  # in the name of an arm
MAX_VALUE = 40  # characters of a value in the name of an arm


class Arm(Struct, frozen=True, kw_only=True):
    """Hold the runs of one recipe, in the order of their seeds."""

    number: int  # its place among the arms, which is its color
    settings: dict[str, Any]  # section.field -> value, of the fields in which arms differ
    names: dict[str, str]  # the same fields -> how they are called in texts
    runs: list[LoadedRun]
    differing: list[str]  # every field in which arms differ, those too that follow from another
    own_name: str = ""  # used where settings are too many, or none, to name the arm

    @property
    def name(self) -> str:
        """Return what sets the arm apart, as in `staleness=8, decoupled_ppo, loglinear`."""
        return self.own_name or self.name_without(())

    def name_without(self, fields: Sequence[str]) -> str:
        """Name the arm by all settings but those of `fields`."""
        settings = [self.words(field, "=") for field in self.own_settings if field not in fields]
        return ", ".join(settings)

    def words(self, field: str, between: str = " ") -> str:
        """Write one setting, as in `staleness 8`. A kind needs no name, and no word of a section with a kind does."""
        value = self.settings[field]
        shown = show(field, value)
        kind = f"{field.rpartition('.')[0]}{KIND}"
        if isinstance(value, str) and "." not in self.names[field] and kind in self.settings:
            return shown
        return f"{self.names[field]}{between}{shown}"

    @property
    def own_settings(self) -> dict[str, Any]:
        """Return the settings that matter to it: no field of another kind, and of a bound and a lag the one it has."""
        recipe = self.runs[0].recipe
        own = {field: value for field, value in self.settings.items() if field in recipe or value is not None}
        if STALENESS in own and LAG in own:
            del own[LAG if own[LAG] is None else STALENESS]
        return own

    @property
    def seeds(self) -> list[int]:
        """Return the seeds of its runs."""
        return [run.seed for run in self.runs]

    def estimate(self, number: Callable[[LoadedRun], float]) -> MeanOfSeeds | None:
        """Return the mean of a number over the seeds; None where no run has it."""
        return mean_of_seeds([number(run) for run in self.runs])

    def mean(self, metric: str) -> MeanOfSeeds | None:
        """Return the mean of a metric over steps and seeds."""
        return self.estimate(lambda run: run.mean(metric))

    def last(self, metric: str) -> MeanOfSeeds | None:
        """Return the mean over seeds of the last value of a metric."""
        return self.estimate(lambda run: run.last(metric))


def make_arms(runs: Sequence[LoadedRun]) -> tuple[list[Arm], list[str]]:
    """Group runs into arms, in the order of their settings; also return a line for each run that does not count."""
    recipes = [run.recipe for run in runs]
    differing = _differing(recipes)
    fields = _naming_fields(differing, recipes)
    groups: dict[tuple[bytes, ...], list[LoadedRun]] = {}
    for run in runs:
        values = tuple(field_value(run.recipe, field) for field in differing)
        groups.setdefault(values, []).append(run)

    def place(group: list[LoadedRun]) -> list[tuple[int, float, str]]:
        return [order(field, _value_or_section(group[0].recipe, field)) for field in fields]

    notes: list[str] = []
    arms = []
    for number, group in enumerate(sorted(groups.values(), key=place)):
        arm = Arm(
            number=number,
            settings={field: _value_or_section(group[0].recipe, field) for field in fields},
            names=_short_names(fields),
            differing=differing,
            runs=_one_of_each_seed(group, notes),
        )
        arms.append(arm)
    if not 0 < len(fields) <= MAX_FIELDS or len({arm.name for arm in arms}) < len(arms):
        own_names = [arm.runs[0].recipe["name"] for arm in arms]
        if len(set(own_names)) < len(arms):
            common = os.path.commonpath([arm.runs[0].name for arm in arms]) if len(arms) > 1 else ""
            own_names = [os.path.relpath(arm.runs[0].name, common or None) for arm in arms]
        arms = [msgspec.structs.replace(arm, own_name=name) for arm, name in zip(arms, own_names, strict=True)]
    return arms, notes


def lines_along(arms: Sequence[Arm], axis: Sequence[str]) -> list[list[Arm]]:
    """Group arms that differ in the fields of one axis alone."""
    lines: dict[bytes, list[Arm]] = {}
    for arm in arms:
        rest = {field: value for field, value in arm.settings.items() if field not in axis}
        lines.setdefault(exact(rest), []).append(arm)
    return list(lines.values())


def show(field: str, value: Any) -> str:
    """Write the value of a field in a few characters; no bound at all is ∞."""
    if value is None:
        return INFINITY if field == STALENESS else "none"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):  # a section
        text = " ".join(f"{name} {show(name, inner)}" for name, inner in value.items())
    else:
        text = PLACE.sub("", value) if isinstance(value, str) else msgspec.json.encode(value).decode()
    half = MAX_VALUE // 2
    return text if len(text) <= MAX_VALUE else f"{text[: half - 1]}…{text[-half:]}"


def order(field: str, value: Any) -> tuple[int, float, str]:
    """Return by what values of a field are sorted: numbers by size, then words; no bound comes after every bound."""
    if value is None:
        return 2 if field == STALENESS else 0, 0.0, ""
    if isinstance(value, int | float):
        return 1, float(value), ""
    return 1, 0.0, show(field, value)


def is_number(value: Any) -> bool:
    """Return whether a value is a number, which has neighbors in size."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def exact(value: Any) -> bytes:
    """Return a value that can be compared and hashed."""
    return msgspec.json.encode(value, order="sorted")


def field_value(recipe: dict[str, Any], field: str) -> bytes:
    """Return a value that can be compared; b"" for a field that the recipe lacks."""
    return exact(recipe[field]) if field in recipe else b""


def _value_or_section(recipe: dict[str, Any], field: str) -> Any:
    """Return the value of a field, or its section as a mapping; None where the recipe has neither."""
    if field in recipe:
        return recipe[field]
    prefix = f"{field}."
    return {name.removeprefix(prefix): value for name, value in recipe.items() if name.startswith(prefix)} or None


def _differing(recipes: Sequence[dict[str, Any]]) -> list[str]:
    """Return the fields in which recipes differ, in the order of the recipe.

    A field that a recipe does not have at all, because another version of arl wrote it or because it belongs to another
    kind, is no difference by itself.
    """
    differing = []
    for field in dict.fromkeys(field for recipe in recipes for field in recipe):
        values = {field_value(recipe, field) for recipe in recipes if _knows(recipe, field)}
        if len(values) > 1 and field not in NOT_OF_AN_ARM and not field.startswith(NOT_OF_AN_ARM_SECTIONS):
            differing.append(field)
    return differing


def _knows(recipe: dict[str, Any], field: str) -> bool:
    """Return whether a recipe has the field, or a value in the place of its section, or a section in its place."""
    if field in recipe:
        return True
    return any(field.startswith(f"{other}.") or other.startswith(f"{field}.") for other in recipe)


def _naming_fields(differing: Sequence[str], recipes: Sequence[dict[str, Any]]) -> list[str]:
    """Return the fields that name arms: none of a section that another one names, none that follows from another."""
    fields = []
    for field in differing:
        is_inside = any(field.startswith(f"{other}.") for other in differing)
        if not is_inside and not _follows(field, differing, recipes):
            fields.append(field)
    return fields


def _follows(field: str, differing: Sequence[str], recipes: Sequence[dict[str, Any]]) -> bool:
    """Return whether the value of a field follows from another field that differs."""
    owner = FOLLOWS.get(field, f"{field.rpartition('.')[0]}{KIND}")
    if field == owner or owner not in differing:
        return False
    pairs = {(field_value(recipe, owner), field_value(recipe, field)) for recipe in recipes}
    return len(pairs) == len({of_owner for of_owner, _ in pairs})


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
