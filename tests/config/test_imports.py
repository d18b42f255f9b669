"""What a recipe names is found and has all parts of its seam, or it is refused."""

import re
from abc import abstractmethod
from collections.abc import Awaitable
from typing import Any, ClassVar, Literal, Protocol

import pytest

from arl.config.imports import import_attribute, import_function, import_seam
from arl.errors import RecipeError

EXAMPLE = "arl.somewhere:the_nearest"


class Shape(Protocol):
    """A seam with an attribute, a method, a keyword-only argument and an asynchronous method."""

    sides: int

    @property
    def name(self) -> str: ...

    def area(self, width: float, *, height: float) -> float: ...

    async def draw(self, canvas: object) -> None: ...


class Scorer(Protocol):
    """A seam that is a function."""

    def __call__(self, problem: object, response: str) -> float: ...


class Driver(Protocol):
    """A seam that is an asynchronous function, of any kind."""

    def __call__(self, problem: object) -> Awaitable[None]: ...


class Family(Protocol):
    """A seam to inherit from: one part has a default, one must be written, one is called without an instance."""

    size: int = 1

    @abstractmethod
    def members(self) -> list[str]: ...

    @staticmethod
    @abstractmethod
    def join(one: str, other: str) -> str: ...


class Pair(Family):
    def members(self) -> list[str]:
        return []

    @staticmethod
    def join(one: str, other: str) -> str:
        return one + other


class Childless(Family):
    @staticmethod
    def join(one: str, other: str) -> str:
        return one + other


class Bound(Family):
    def members(self) -> list[str]:
        return []

    def join(self, one: str, other: str) -> str:  # type: ignore[override]
        return one + other


class Settings:
    """A seam that is a base class: one attribute has allowed values."""

    scope: ClassVar[Literal["token", "sequence"]]


class Misspelled(Settings):
    scope = "tokens"  # type: ignore[assignment]


class Square:
    sides = 4
    name = "square"

    def area(self, side: float, height: float) -> float:
        return side * height

    async def draw(self, surface: object) -> None:
        pass


class Declared:
    """Has its attributes once it is made."""

    sides: int

    def __init__(self) -> None:
        self.sides = 3

    @property
    def name(self) -> str:
        return "triangle"

    area = Square.area
    draw = Square.draw


class Nameless:
    sides = 4
    area = Square.area
    draw = Square.draw


class Flat(Square):
    def area(self, width: float) -> float:  # type: ignore[override]
        return width


class Blocking(Square):
    def draw(self, canvas: object) -> None:  # type: ignore[override]
        pass


square = Square()
nameless = Nameless()


def good_score(problem: object, response: str, extra: int = 0) -> float:
    return 1.0


def short_score(problem: object) -> float:
    return 1.0


async def async_score(problem: object, response: str) -> float:
    return 1.0


async def drive(problem: object) -> None:
    pass


def seam(attribute: str, protocol: type, **built_in: str) -> Any:
    return import_seam(f"{__name__}:{attribute}", "shape.kind", protocol, EXAMPLE, built_in)


@pytest.mark.parametrize(
    ("attribute", "protocol"),
    [
        ("square", Shape),
        ("Declared", Shape),
        ("Pair", Family),
        ("good_score", Scorer),
        ("drive", Driver),
    ],
)
def test_what_has_every_part_is_taken(attribute: str, protocol: type) -> None:
    assert seam(attribute, protocol) is globals()[attribute]


@pytest.mark.parametrize(
    ("attribute", "protocol", "complaint"),
    [
        ("nameless", Shape, "lacks the attribute name"),
        ("Flat", Shape, "area(self, width: float) -> float cannot be called as area(width, *, height)"),
        ("Blocking", Shape, "draw must be async: write `async def draw(canvas)`"),
        ("Childless", Family, "lacks the method members()"),
        (
            "Bound",
            Family,
            "cannot be called as join(one, other) (missing a required argument: 'other'); is it a @static",
        ),
        ("Settings", Settings, "lacks the attribute scope"),
        ("Misspelled", Settings, "scope is 'tokens', and must be one of 'token', 'sequence'"),
        ("short_score", Scorer, "short_score(problem: object) -> float cannot be called as short_score(problem, resp"),
        ("async_score", Scorer, "async_score must not be async"),
    ],
)
def test_what_lacks_a_part_is_refused_beside_the_nearest_example(
    attribute: str, protocol: type, complaint: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        seam(attribute, protocol)
    message = str(caught.value)
    assert message.startswith(f"shape.kind '{__name__}:{attribute}': ")
    assert complaint in message
    assert message.endswith(f"; see {EXAMPLE} for a complete one")


def test_a_short_name_is_looked_up_in_the_table_of_the_seam() -> None:
    table = {"square": f"{__name__}:square"}
    assert import_seam("square", "shape.kind", Shape, EXAMPLE, table) is square
    with pytest.raises(RecipeError, match=re.escape("shape.kind 'sqare': did you mean square? give one of square, or")):
        import_seam("sqare", "shape.kind", Shape, EXAMPLE, table)


def test_an_attribute_may_be_dotted() -> None:
    assert import_function(f"{__name__}:Pair.join", "shape.kind") is Pair.join


def test_a_name_without_an_object_is_refused() -> None:
    with pytest.raises(RecipeError, match="write it as module:attribute"):
        import_function("json", "shape.kind")
    with pytest.raises(RecipeError, match="cannot import nowhere"):
        import_attribute("nowhere:score", "shape.kind")
    with pytest.raises(RecipeError, match=r"json has no attribute lods; did you mean loads\?"):
        import_function("json:lods", "shape.kind")
    with pytest.raises(RecipeError, match="is str, and must be a function"):
        import_function("json:__name__", "shape.kind")
