"""Combine the axes of a sweep into arms, name them, and check all of them before anything starts.

axes, named arms ─► every combination that exclude leaves ─► recipe of each ─► preflight of each ─► Sweep
"""

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from arl.config.recipe import Recipe
from arl.config.recipe_file import leaves, load_recipe
from arl.errors import InputError
from arl.run.preflight import preflight
from arl.run.submit import is_submitted
from arl.sweep.request import Axis, SweepRequest, write_override

MAX_NAME = 150  # characters of a directory's name; file systems take 255 bytes
MAX_LISTED = 4  # arms that a message names
Settings = Mapping[str, Any]  # field -> value
Rule = Mapping[str, Any]  # field -> value, or a list of values


class SweepArm(Struct, frozen=True):
    """Hold one arm of a sweep: the name of its directory, what it sets, and its recipe, which is known to start.

    Args:
        settings: field -> value, where the fields of a section are fields of their own.
    """

    name: str
    settings: dict[str, Any]
    recipe: Recipe


class Sweep(Struct, frozen=True):
    """Hold the recipe of a sweep without any arm's settings, its arms, and the seeds of each."""

    base: Recipe
    arms: list[SweepArm]
    seeds: list[int]


class _Combination(NamedTuple):
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
        named = {"arm": self.name} if self.name else {}
        return {**named, **self.given, **dict(leaves(self.given))}

    def matches(self, rule: Rule) -> bool:
        facts = self.facts
        return all(field in facts and _matches(facts[field], wanted) for field, wanted in rule.items())


def check_arms(request: SweepRequest, note: Callable[[str], None]) -> Sweep:
    """Make the recipe of each arm, and check that each can start. Nothing is started or written.

    Raises:
        InputError: the recipe is wrong, or arms cannot run; with arm, value, rule and remedy of all of them.
    """
    try:
        base = load_recipe(request.recipe, request.overrides)
    except InputError as error:
        raise InputError(
            f"{error}\n{request.recipe}: must be a valid recipe also without the settings of an arm; correct it there, "
            "or by --set, which every arm begins with"
        ) from error
    combined = combine(request.axes, request.named, request.exclude, base=dict(leaves(base.model_dump(mode="json"))))
    note(f"checking {len(combined)} arms")
    arms = []
    complaints: dict[str, list[str]] = {}
    for name, given in combined.items():
        settings = [write_override(field, value) for field, value in given.items()]
        try:
            recipe = load_recipe(request.recipe, [*request.overrides, *settings])
            _validate_launcher(recipe)
            preflight(recipe)
            arms.append(SweepArm(name, dict(leaves(given)), recipe))
        except InputError as error:
            for line in str(error).splitlines():
                complaint = re.sub(r"^--set .*?: (?=[\w.]+: unknown key)", "", line)  # the same for every value
                complaints.setdefault(complaint, []).append(name)
    if complaints:
        raise InputError(_explain(complaints, num_wrong=len(combined) - len(arms), num_arms=len(combined)))
    _validate_unequal(arms)
    seeds = [base.seed] if request.seeds is None else request.seeds
    return Sweep(base, arms, seeds)


def combine(
    axes: Sequence[Axis],
    named: Mapping[str, Settings],
    exclude: Sequence[Rule] = (),
    base: Settings | None = None,
) -> dict[str, dict[str, Any]]:
    """Return name -> field -> value of every arm; without axes and named arms it is one, `base`, which sets nothing.

    Args:
        named: arms with a name of their own, each of which is combined with every point of the axes.
        exclude: combinations to leave out.
        base: field -> value of the recipe without any setting. Names leave out what is null in both.

    Raises:
        InputError: a field is set twice, a rule matches nothing, or no combination is left.
    """
    _validate_axes(axes, named)
    combinations = [
        _Combination(name, settings, {field: value for point in points for field, value in point.items()})
        for name, settings in (named or {"": {}}).items()
        for points in itertools.product(*axes)
    ]
    _validate_rules(exclude, combinations)
    kept = [combination for combination in combinations if not any(map(combination.matches, exclude))]
    if not kept:
        raise InputError("the sweep has no arm: exclude less")
    fields = {field for combination in kept for field in dict(leaves(combination.point))}
    last_words = Counter(field.rpartition(".")[2] for field in fields)
    arms: dict[str, dict[str, Any]] = {}
    for combination in kept:
        name = _directory_name(combination, last_words, base or {})
        given = combination.given
        if name in arms:
            raise InputError(f"{given} and {arms[name]}: both are named {name}; name them by `arms:` of a sweep file")
        arms[name] = given
    return arms


def _validate_axes(axes: Sequence[Axis], named: Mapping[str, Settings]) -> None:
    """Raise InputError where two axes, or an axis and a named arm, set the same field."""
    sources = [set(axis[0]) for axis in axes]
    sources.append({field for settings in named.values() for field in settings})
    for fields, others in itertools.combinations(sources, 2):
        for field, other in itertools.product(fields, others):
            if f"{field}.".startswith(f"{other}.") or f"{other}.".startswith(f"{field}."):
                raise InputError(f"{field}, {other}: two axes set it; give its values in one axis")


def _validate_rules(rules: Sequence[Rule], combinations: Sequence[_Combination]) -> None:
    """Raise InputError where a rule leaves nothing out, because it cannot be meant so."""
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


def _directory_name(combination: _Combination, last_words: Counter[str], base: Settings) -> str:
    """Name an arm as in `naive,staleness=8`."""
    parts = [combination.name] if combination.name else []
    for field, value in dict(leaves(combination.point)).items():
        stays_null = value is None and field in base and base[field] is None
        if stays_null:
            continue
        last = field.rpartition(".")[2]
        label = last if last_words[last] == 1 else field
        parts.append(f"{label}={_write(value)}")
    name = ",".join(parts) or "base"
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f"{name[:MAX_NAME]}-{digest[:8]}"


def _write(value: Any) -> str:
    """Write a value so that it can stand in the name of a directory."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = "+".join(map(_write, value)) if isinstance(value, list) else str(value)
    return re.sub(r"[^A-Za-z0-9._+-]", "-", text) or "empty"


def _validate_launcher(recipe: Recipe) -> None:
    """Refuse launchers whose nodes the runs of a sweep cannot get.

    Raises:
        InputError: Slurm outside of an allocation; or Ray, whose nodes this process would hold itself.
    """
    if is_submitted(recipe):
        raise InputError(
            "launcher slurm: a sweep submits no jobs, its runs take turns in an allocation; make one with salloc or "
            "sbatch, and start the sweep on its first node (docs/sweeps.md)"
        )
    if recipe.launcher == "ray":
        raise InputError(
            "launcher ray: a sweep would keep the nodes of the cluster from its own runs; start them by `arl train`, "
            "one after the other (docs/sweeps.md)"
        )


def _validate_unequal(arms: Sequence[SweepArm]) -> None:
    """Raise InputError where two arms compute the same, as of 1e-4 and 1.0e-4: a report could not tell them apart."""
    computed: list[dict[str, Any]] = []
    for arm in arms:
        settings = arm.recipe.model_dump(mode="json", exclude={"output"})
        if settings in computed:
            twin = arms[computed.index(settings)]
            raise InputError(f"arms {twin.name} and {arm.name}: their recipes are equal; leave one of the two out")
        computed.append(settings)


def _explain(complaints: Mapping[str, list[str]], num_wrong: int, num_arms: int) -> str:
    """Write each complaint once, with the arms that have it."""
    lines = []
    for complaint, names in complaints.items():
        more = "" if len(names) <= MAX_LISTED else "; …"
        arms = f"arm {names[0]}" if len(names) == 1 else f"{len(names)} arms ({'; '.join(names[:MAX_LISTED])}{more})"
        lines.append(f"{arms}: {complaint}")
    lines.append(
        f"{num_wrong} of {num_arms} arms cannot run, and nothing was started. Change the values, or leave these "
        "combinations out by `exclude:` of a sweep file (docs/sweeps.md)"
    )
    return "\n".join(lines)
