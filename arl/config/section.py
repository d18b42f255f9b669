"""Define what every section of a recipe is made of: its base class, and types with bounds and units."""

from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field


class Unit(str):
    """Name the unit of a field, for docs/reference.md, as in `Annotated[int, Unit("tokens")]`."""


Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
FractionBelowOne = Annotated[float, Field(ge=0, lt=1)]

Tokens = Annotated[Positive, Unit("tokens")]
Steps = Annotated[Positive, Unit("steps")]
Seconds = Annotated[PositiveFloat, Unit("seconds")]
Cost = Annotated[NonNegativeFloat, Unit("virtual seconds")]


class Section(BaseModel):
    """Hold a frozen part of a recipe. Unknown keys are refused; the docstring below each field describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def inner_sections(annotation: Any) -> list[type[BaseModel]]:
    """List the sections that a field of this type may hold: `Warmup` for `Warmup | None`, none for `int`."""
    parts = (annotation, *get_args(annotation))
    return [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
