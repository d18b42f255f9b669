"""Define what every section of a recipe is made of: its base class, and types with bounds and units."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator


class Unit(str):
    """Name the unit of a field, for docs/reference.md, as in `Annotated[int, Unit("tokens")]`."""


LARGEST_SEED = 2**62  # numbers of processes are added to it, and torch takes 64 bits

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
FractionBelowOne = Annotated[float, Field(ge=0, lt=1)]

Tokens = Annotated[Positive, Unit("tokens")]
Steps = Annotated[Positive, Unit("steps")]
Seconds = Annotated[PositiveFloat, Unit("seconds")]
Cost = Annotated[NonNegativeFloat, Unit("virtual seconds")]


def usable_path(text: str) -> str:
    """Return a path that does not break the line of a log or of a message.

    Raises:
        ValueError: it is empty, or does.
    """
    if not text:
        raise ValueError("must not be empty")
    if not text.isprintable():
        raise ValueError("must not hold line ends, tabs or other characters that are not printed")
    return text


FilePath = Annotated[str, AfterValidator(usable_path)]


class Section(BaseModel):
    """Hold a frozen part of a recipe. Unknown keys are refused; the docstring below each field describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false where a number is due; pydantic would take them for 1 and 0.

        Raises:
            ValueError: the value, or one in its list, is such a boolean.
        """
        assert info.field_name is not None
        field = cls.model_fields[info.field_name]
        types = list(_types_in(field.annotation))
        is_number = int in types or float in types
        takes_booleans = bool in types or Any in types
        if is_number and not takes_booleans and _has_boolean(value):
            raise ValueError("must be a number, and not true or false")
        return value


def _has_boolean(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_boolean, value))
    return isinstance(value, bool)


def _types_in(annotation: Any) -> Iterator[Any]:
    """Yield a type and the types in it: of `int | None` also int. What a Literal lists are values."""
    yield annotation
    if get_origin(annotation) is Literal:
        return
    for part in get_args(annotation):
        yield from _types_in(part)


def inner_sections(annotation: Any) -> list[type[BaseModel]]:
    """List the sections that a field of this type may hold: `Overlong` for `Overlong | None`, none for `int`."""
    parts = (annotation, *get_args(annotation))
    return [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
