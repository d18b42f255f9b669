"""Combine the axes of a sweep into arms, and name them.

axes, named arms ─► every combination ─► those that exclude leaves ─► SweepArm(name, given)
"""

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from arl.config.leaves import leaves
from arl.errors import InputError
from arl.sweep.axes import SweepAxis

ARM = "arm"  # stands for the name of a named arm, in exclude and only
MAX_NAME = 150  # characters of a directory's name; file systems take 255 bytes
Settings = Mapping[str, Any]  # field -> value
Rule = Mapping[str, Any]  # field -> value, or a list of values


class SweepArm(Struct, frozen=True):
    """Hold one arm of a sweep: the name of its directory, and what it sets.

    Args:
        given: field -> value. A value may be a whole section.
    """

    name: str
    given: Settings

    @property
    def settings(self) -> dict[str, Any]:
        """Return field -> value, where the fields of a section are fields of their own."""
        return dict(leaves(self.given))


class _Combination(Struct, frozen=True):
    """Hold a named arm, or "" for none, what it sets, and a point of each axis."""

    name: str
    named: Settings
    point: Settings

    @property
    def given(self) -> dict[str, Any]:
        return {**self.named, **self.point}

    @property
    def facts(self) -> dict[str, Any]:
        """Return what a rule can name: fields, sections, and the name of the named arm."""
        named = {ARM: self.name} if self.name else {}
        return {**named, **self.given, **dict(leaves(self.given))}

    def matches(self, rule: Rule) -> bool:
        facts = self.facts
        return all(field in facts and _matches(facts[field], wanted) for field, wanted in rule.items())


def combine(
    axes: Sequence[SweepAxis],
    named: Mapping[str, Settings],
    exclude: Sequence[Rule] = (),
    base: Settings | None = None,
) -> list[SweepArm]:
    """Make the arms of a sweep; without axes and named arms it is one, which sets nothing and is named `base`.

    Args:
        named: arms with a name of their own, each of which is combined with every point of the axes.
        exclude: combinations to leave out.
        base: field -> value of the recipe without any setting. Names leave out what is null in both.

    Raises:
        InputError: a field is set twice, a rule matches nothing, or no combination is left.
    """
    _refuse_fields_set_twice(axes, named)
    combinations = [
        _Combination(name, settings, {field: value for point in points for field, value in point.items()})
        for name, settings in (named or {"": {}}).items()
        for points in itertools.product(*(axis.points for axis in axes))
    ]
    _refuse_idle_rules(exclude, combinations)
    kept = [combination for combination in combinations if not any(map(combination.matches, exclude))]
    if not kept:
        raise InputError("the sweep has no arm: exclude less")
    return _name(kept, base or {})


def _refuse_fields_set_twice(axes: Sequence[SweepAxis], named: Mapping[str, Settings]) -> None:
    sources = [axis.fields for axis in axes]
    sources.append(tuple({field for settings in named.values() for field in settings}))
    for fields, others in itertools.combinations(sources, 2):
        for field, other in itertools.product(fields, others):
            if f"{field}.".startswith(f"{other}.") or f"{other}.".startswith(f"{field}."):
                raise InputError(f"{field}, {other}: two axes set it; give its values in one axis")


def _refuse_idle_rules(rules: Sequence[Rule], combinations: Sequence[_Combination]) -> None:
    fields: set[str] = set()
    for combination in combinations:
        fields |= combination.facts.keys()
    for rule in rules:
        unknown = rule.keys() - fields
        if unknown:
            axes = f"the axes are {', '.join(sorted(fields))}" if fields else "the sweep has no axes or arms: add them"
            raise InputError(f"exclude {dict(rule)}: {', '.join(unknown)} is no axis; {axes}")
        if not any(combination.matches(rule) for combination in combinations):
            raise InputError(f"exclude {dict(rule)}: no combination has these values; correct it or leave it out")


def _matches(value: Any, wanted: Any) -> bool:
    return bool(value == wanted) or (isinstance(wanted, list) and value in wanted)


def _name(kept: Sequence[_Combination], base: Settings) -> list[SweepArm]:
    fields: set[str] = set()
    for combination in kept:
        fields |= dict(leaves(combination.point)).keys()
    last_words = Counter(field.rpartition(".")[2] for field in fields)
    arms: dict[str, Settings] = {}
    for combination in kept:
        name = _directory_name(combination, last_words, base)
        given = combination.given
        if name in arms:
            raise InputError(f"{given} and {arms[name]}: both are named {name}; name them by `arms:` of a sweep file")
        arms[name] = given
    return [SweepArm(name, given) for name, given in arms.items()]


def _directory_name(combination: _Combination, last_words: Counter[str], base: Settings) -> str:
    """Name an arm as in `naive,staleness=8`."""
    parts = [combination.name] if combination.name else []
    for field, value in dict(leaves(combination.point)).items():
        stays_null = value is None and field in base and base[field] is None
        if stays_null:
            continue
        last = field.rpartition(".")[2]
        label = last if last_words[last] == 1 else field
        parts.append(f"{label}={_written(value)}")
    name = ",".join(parts) or "base"
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{name[:MAX_NAME]}-{digest[:8]}"


def _written(value: Any) -> str:
    """Write a value so that it can stand in the name of a directory."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = "+".join(map(_written, value)) if isinstance(value, list) else str(value)
    return re.sub(r"[^A-Za-z0-9._+-]", "-", text) or "empty"
