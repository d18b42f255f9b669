"""Read the axes of a sweep: `rollout.staleness=0,1,4`, where each value is YAML, as after `--set`."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from arl.config.yaml_loader import YamlError, dump_yaml, load_yaml
from arl.errors import InputError

MOST_POINTS = 500  # of an axis
LONGEST_VALUE = 1_000  # characters of one value


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

    def values(self, field: str) -> list[Any]:
        """Return the values of a field, in the order of the points, each once."""
        values: list[Any] = []
        for point in self.points:
            if point[field] not in values:
                values.append(point[field])
        return values


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
    if max(lengths.values()) > MOST_POINTS:
        raise InputError(f"{place}: an axis has at most {MOST_POINTS} values; give fewer")
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
    """Write a setting as `--set` reads it. Every arm reads its own, so a setting is small.

    Raises:
        InputError: it is not.
    """
    if len(repr(value)) > LONGEST_VALUE:
        raise InputError(
            f"{field}: a setting of a sweep has at most {LONGEST_VALUE} characters; write it in the recipe"
        )
    return f"{field}={dump_yaml(value, flow=True)}"
