"""Define what every section of a recipe is made of: its base class, types with bounds and units, and variables."""

import os
from collections.abc import Collection
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo


class Unit(str):
    """Name the unit of a field, for docs/reference.md, as in `Annotated[int, Unit("tokens")]`."""


MAX_SEED = 2**62  # numbers of processes are added to it, and torch takes 64 bits


def _number(value: Any) -> Any:
    """Refuse true and false where a number is due; pydantic would take them for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("must be a number, and not true or false")
    return value


NUMBER = BeforeValidator(_number)  # behind the bounds, which must belong to the type

Real = Annotated[float, NUMBER]
Positive = Annotated[int, Field(gt=0), NUMBER]
NonNegative = Annotated[int, Field(ge=0), NUMBER]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED), NUMBER]
PositiveFloat = Annotated[float, Field(gt=0), NUMBER]
NonNegativeFloat = Annotated[float, Field(ge=0), NUMBER]
Fraction = Annotated[float, Field(ge=0, le=1), NUMBER]
OpenFraction = Annotated[float, Field(gt=0, lt=1), NUMBER]
FractionBelowOne = Annotated[float, Field(ge=0, lt=1), NUMBER]

Tokens = Annotated[Positive, Unit("tokens")]
Steps = Annotated[Positive, Unit("steps")]
Seconds = Annotated[PositiveFloat, Unit("seconds")]
Cost = Annotated[NonNegativeFloat, Unit("virtual seconds")]


def usable_path(text: str) -> str:
    """Return a path with the home directory in place of a leading ~ or ~user.

    Raises:
        ValueError: it is empty, would break the line of a log or of a message, or there is no such user.
    """
    if not text:
        raise ValueError("must not be empty")
    if not text.isprintable():
        raise ValueError("must not hold line ends, tabs or other characters that are not printed")
    path = os.path.expanduser(text)
    if path.startswith("~"):
        home = path.partition("/")[0]
        raise ValueError(f"{home} is the home directory of no user here; write ./{home} for a name that begins with ~")
    return path


FilePath = Annotated[str, AfterValidator(usable_path)]


class Section(BaseModel):
    """Hold a frozen part of a recipe. Unknown keys are refused; the docstring below each field describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


INNER = "*"  # alias of a field that no recipe gives by its name, because another field is written in its place


def given_fields(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a section that a recipe may give."""
    return {name: field for name, field in section.model_fields.items() if field.validation_alias != INNER}


def inner_sections(annotation: Any) -> list[type[BaseModel]]:
    """List the sections that a field of this type may hold: `Overlong` for `Overlong | None`, none for `int`."""
    parts = (annotation, *get_args(annotation))
    return [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]


RESERVED = {  # variables that arl sets itself, and where their value comes from
    "CUDA_VISIBLE_DEVICES": "the placement of the run: set it for `arl train` instead, to choose the GPUs of all sides",
    "OMP_NUM_THREADS": "engine.threads or train.threads",
    "RANK": "train.ranks",
    "LOCAL_RANK": "train.ranks",
    "WORLD_SIZE": "train.ranks",
    "MASTER_ADDR": "the launcher",
    "MASTER_PORT": "the launcher",
    "GLOO_SOCKET_IFNAME": "the launcher",
    "NCCL_SOCKET_IFNAME": "the launcher",
    "PYTHONUNBUFFERED": "the launcher, because output must reach the logs at once",
}
SECRET_ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD")


Environment = dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]]


def not_reserved(field: str, may_give: Collection[str] = ()) -> AfterValidator:
    """Return the check that a recipe's `field` gives no variable that arl sets itself, and no secret.

    Args:
        may_give: names that arl sets itself for other processes only.
    """

    def check(environment: Environment) -> Environment:
        for name in environment:
            if name in RESERVED and name not in may_give:
                raise ValueError(f"{field} {name}: arl sets it ({RESERVED[name]}); leave it out")
            if name.startswith("ARL_"):
                raise ValueError(f"{field} {name}: names with ARL_ are arl's own; leave it out")
            if name.upper().endswith(SECRET_ENDINGS):
                raise ValueError(
                    f"{field} {name}: by its name it is a secret, and a recipe is copied into the run "
                    "directory and to trackers; set it for `arl train` instead, every process inherits it"
                )
        return environment

    return AfterValidator(check)
