"""Refuse to vary or to set a field that is not free in a sweep: the sweep sets it, or no report could tell its arms."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from arl.errors import InputError
from arl.sweep.axes import SweepAxis
from arl.sweep.combinations import flatten

OF_THE_SWEEP = {
    "seed": "every arm runs with each of the seeds; give them by --seeds",
    "name": "the sweep names its runs; name the sweep by --name",
}
NOT_COMPUTED = {
    "output": "it says what is written and how often, which is not what arms are compared by; give it by --set",
}
BUDGET = ("train", "train.steps", "train.tokens")


def refuse_reserved_fields(
    axes: Sequence[SweepAxis],
    named: Mapping[str, Mapping[str, Any]],
    overrides: Sequence[str],
) -> None:
    """Check that the fields of axes and arms may vary, and that those of the overrides may be set.

    Raises:
        InputError: some may not; it names all of them, each with the reason and the remedy.
    """
    varied = {f"axis {field}": field for field in fields_of_arms(axes, named)}
    settings = {f"--set {override}": field_of(override) for override in overrides}
    complaints = [
        *_complaints(varied, OF_THE_SWEEP | NOT_COMPUTED),
        *_complaints(settings, OF_THE_SWEEP),
    ]
    if complaints:
        raise InputError("\n".join(complaints))


def refuse_other_budgets(fields: Iterable[str], match: str) -> None:
    """Check that nothing beside `match` says how long the arms train.

    Args:
        match: what it sets, for messages.

    Raises:
        InputError: a field does.
    """
    others = [field for field in dict.fromkeys(fields) if field in BUDGET]
    if others:
        raise InputError(
            f"match: sets {match} in every arm, and {', '.join(others)} is set as well: leave out one of the two"
        )


def fields_of_arms(axes: Sequence[SweepAxis], named: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield every field that an axis or a named arm sets."""
    points = [point for axis in axes for point in axis.points]
    for settings in (*points, *named.values()):
        yield from flatten(settings)


def field_of(override: str) -> str:
    """Return the field that an override sets: a.b of `a.b=x`."""
    return override.partition("=")[0].strip()


def _complaints(fields: Mapping[str, str], reasons: Mapping[str, str]) -> Iterator[str]:
    for place, field in fields.items():
        reason = reasons.get(field.partition(".")[0])
        if reason is not None:
            yield f"{place}: {reason}"
