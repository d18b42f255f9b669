"""Read the axes of a sweep, `rollout.staleness=0,1,4`, and refuse fields that are not free to vary in one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from arl.config.leaves import leaves
from arl.config.yaml_loader import YamlError, dump_yaml, load_yaml
from arl.errors import InputError


class SweepAxis(Struct, frozen=True):
    """Hold one axis: one field, or several that change together, and its points.

    Args:
        points: for each point the value of every field.
    """

    points: tuple[Mapping[str, Any], ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the fields that this axis sets."""
        return tuple(self.points[0])


def parse_axis(text: str, option: str = "--axis") -> tuple[str, list[Any]]:
    """Split `a.b=1,[2,3],{c: 4}` into the field a.b and its values 1, [2, 3] and {c: 4}.

    Raises:
        InputError: there is no field, or the values are not valid YAML.
    """
    field, equals, listed = text.partition("=")
    field = field.strip()
    if not equals or not field:
        raise InputError(f"{option} {text}: write it as section.field=value,value")
    try:
        values = load_yaml(f"[{listed}]")  # where commas separate, unless brackets, braces or quotes hold them
    except YamlError as error:
        raise InputError(f"{option} {text}: the values are not read: {error.rule}") from error
    if not isinstance(values, list):
        raise InputError(f"{option} {text}: write it as section.field=value,value")
    return field, values


def make_axis(values: Mapping[str, Sequence[Any]], place: str) -> SweepAxis:
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
    rows = zip(*values.values(), strict=True)
    points = tuple(dict(zip(values, row, strict=True)) for row in rows)
    for index, point in enumerate(points):
        if point in points[:index]:
            equal = points[points.index(point)]  # 1 and 1.0, or 1 and true, are one value
            raise InputError(f"{place}: {equal} and {point} are the same point; give each value once")
    return SweepAxis(points)


def write_override(field: str, value: Any) -> str:
    """Write a setting as `--set` reads it."""
    return f"{field}={dump_yaml(value, flow=True)}"


OF_THE_SWEEP = {
    "seed": "every arm runs with each of the seeds; give them by --seeds",
    "name": "the sweep names its runs; name the sweep by --name",
}
NOT_COMPUTED = {
    "output": "it says what is written and how often, which is not what arms are compared by; give it by --set",
}


def refuse_reserved_fields(
    axes: Sequence[SweepAxis],
    named: Mapping[str, Mapping[str, Any]],
    overrides: Sequence[str],
) -> None:
    """Check that the fields of axes and arms may vary, and that those of the overrides may be set.

    Raises:
        InputError: some may not; it names all of them, each with the reason and the remedy.
    """
    points = [point for axis in axes for point in axis.points]
    varied = {f"axis {field}": field for given in (*points, *named.values()) for field in dict(leaves(given))}
    settings = {f"--set {override}": override.partition("=")[0].strip() for override in overrides}
    complaints = [*_complaints(varied, OF_THE_SWEEP | NOT_COMPUTED), *_complaints(settings, OF_THE_SWEEP)]
    if complaints:
        raise InputError("\n".join(complaints))


def _complaints(fields: Mapping[str, str], reasons: Mapping[str, str]) -> Iterator[str]:
    for place, field in fields.items():
        reason = reasons.get(field.partition(".")[0])
        if reason is not None:
            yield f"{place}: {reason}"
