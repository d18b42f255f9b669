"""Combine the axes of a sweep into arms, name them, and check all of them before anything starts.

axes, named arms ─► every combination that exclude leaves ─► recipe of each ─► preflight of each ─► Sweep
"""

import hashlib
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
    arms: list[SweepArm] = []
    complaints = defaultdict[str, list[str]](list)
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
                complaints[complaint].append(name)
    if complaints:
        raise InputError(_explain(complaints, num_wrong=len(combined) - len(arms), num_arms=len(combined)))
    for one, two in itertools.combinations(arms, 2):  # as of 1e-4 and 1.0e-4: a report could not tell them apart
        if one.recipe == two.recipe:
            raise InputError(f"arms {one.name} and {two.name}: their recipes are equal; leave one of the two out")
    return Sweep(base, arms, request.seeds or [base.seed])


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
    combinations: list[tuple[str, Settings, dict[str, Any]]] = []  # named arm or "", what axes set, all
    for name, settings in (named or {"": {}}).items():
        for points in itertools.product(*axes):
            point = {field: value for of_axis in points for field, value in of_axis.items()}
            combinations.append((name, point, {**settings, **point}))
    for rule in exclude:
        if not any(_matches(rule, name, given) for name, _, given in combinations):
            raise InputError(f"exclude {dict(rule)}: no combination has these values; correct it or leave it out")
    kept = [one for one in combinations if not any(_matches(rule, one[0], one[2]) for rule in exclude)]
    if not kept:
        raise InputError("the sweep has no arm: exclude less")
    fields = {field for _, point, _ in kept for field in dict(leaves(point))}
    last_words = Counter(field.rpartition(".")[2] for field in fields)
    arms: dict[str, dict[str, Any]] = {}
    for named_arm, varied, combined in kept:
        name = _directory_name(named_arm, varied, last_words, base or {})
        if name in arms:
            raise InputError(
                f"{combined} and {arms[name]}: both are named {name}; name them by `arms:` of a sweep file"
            )
        arms[name] = combined
    return arms


def _validate_axes(axes: Sequence[Axis], named: Mapping[str, Settings]) -> None:
    """Raise InputError where two axes, or an axis and a named arm, set the same field."""
    sources = [set(axis[0]) for axis in axes]
    sources.append({field for settings in named.values() for field in settings})
    for fields, others in itertools.combinations(sources, 2):
        for field, other in itertools.product(fields, others):
            if f"{field}.".startswith(f"{other}.") or f"{other}.".startswith(f"{field}."):
                raise InputError(f"{field}, {other}: two axes set it; give its values in one axis")


def _matches(rule: Rule, name: str, given: Settings) -> bool:
    """Return whether a combination has the values of a rule, which may name fields, sections and the named arm."""
    facts = {"arm": name, **given, **dict(leaves(given))}
    return all(
        field in facts and (facts[field] == wanted or (isinstance(wanted, list) and facts[field] in wanted))
        for field, wanted in rule.items()
    )


def _directory_name(named: str, point: Settings, last_words: Counter[str], base: Settings) -> str:
    """Name an arm as in `naive,staleness=8`."""
    parts = [named] if named else []
    for field, value in dict(leaves(point)).items():
        if value is None and base.get(field, "") is None:
            continue
        last = field.rpartition(".")[2]
        parts.append(f"{last if last_words[last] == 1 else field}={_write(value)}")
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
