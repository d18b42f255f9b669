"""Sections of a recipe whose `kind` chooses the class that checks the rest of the section.

    objective: {kind: gspo, clip_low: 3e-4, …} ─► the class that `gspo` names ─► its fields are checked, its code runs

A kind is a short name from the section's table of built-ins, or `module:attribute` for user code. The class is imported
when the recipe is read, by its name, so that arl.config imports nothing of the rooms above it.
"""

import difflib
import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import ModelWrapValidatorHandler, model_validator

from arl.config.imports import import_function
from arl.config.section import Section
from arl.errors import RecipeError


class ChosenSection(Section):
    """A section that is replaced by an object of the class that its `kind` names.

    A direct subclass is one seam: it says what a class must declare. Subclasses of that are the implementations.
    """

    kind: str = ""
    """Short name of a built-in, or `module:attribute`."""

    SECTION: ClassVar[str]  # its name in the recipe
    DEFAULT: ClassVar[str]  # a short name
    BUILT_IN: ClassVar[Mapping[str, str]]  # short name -> module:attribute
    BASE: ClassVar[str]  # module:attribute of the class that implementations inherit from
    EXAMPLE: ClassVar[str]  # the file of the built-in that is nearest to what a user writes
    DECLARED: ClassVar[Mapping[str, tuple[Any, ...]]]  # class attribute -> its allowed values; none: any
    METHOD: ClassVar[tuple[str, tuple[str, ...]]]  # name and parameters of the method that a class defines

    @model_validator(mode="wrap")
    @classmethod
    def _replace_by_the_chosen(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if ChosenSection not in cls.__bases__:
            return handler(given)  # an implementation checks its own fields
        if isinstance(given, cls):
            return given
        fields = {"kind": given} if isinstance(given, str) else given
        if not isinstance(fields, dict):
            raise ValueError(f"{cls.SECTION} {given!r}: give a section with `kind` and the fields of that kind")
        implementation = cls.implementation(fields)
        chosen = implementation.model_validate({"kind": cls.DEFAULT} | fields)
        chosen.refuse_impossible()
        return chosen

    @classmethod
    def implementation(cls, fields: Mapping[str, Any]) -> type[Self]:
        """The class that `fields["kind"]` names.

        Raises:
            ValueError: an unknown name, or a class that lacks a part; it says the rule and the nearest example.
        """
        kind = fields.get("kind", cls.DEFAULT)
        path = cls.BUILT_IN.get(kind, kind) if isinstance(kind, str) else ""
        if ":" not in path:
            close = difflib.get_close_matches(str(kind), cls.BUILT_IN, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"built in are {', '.join(cls.BUILT_IN)}"
            raise ValueError(f"{cls.SECTION}.kind = {kind!r}: {remedy}; your own is module:attribute")
        try:
            found = import_function(path, f"{cls.SECTION}.kind")
        except RecipeError as error:
            raise ValueError(str(error)) from error
        if fault := cls._fault(found):
            raise ValueError(f"{cls.SECTION}.kind = {kind!r}: {fault}; see {cls.EXAMPLE} for an example")
        return found  # type: ignore[return-value]  # _fault has seen that it is a subclass

    @classmethod
    def _fault(cls, found: Any) -> str:
        """Describe what keeps `found` from being an implementation of this seam; empty if nothing does."""
        base = import_function(cls.BASE, cls.SECTION)
        if not inspect.isclass(found) or not issubclass(found, base):  # type: ignore[arg-type]
            return f"it must be a subclass of {cls.BASE}"
        for name, allowed in cls.DECLARED.items():
            value = getattr(found, name, None)
            if value is None:
                return f"{found.__name__} does not declare `{name}`"
            if allowed and value not in allowed:
                return f"{found.__name__}.{name} is {value!r}, and must be one of {', '.join(map(repr, allowed))}"
        name, expected = cls.METHOD
        method = inspect.getattr_static(found, name, None)
        signature = f"{name}({', '.join(('self', *expected))})"
        if not inspect.isfunction(method) or getattr(method, "__isabstractmethod__", False):
            return f"{found.__name__} does not define {signature}"
        parameters = inspect.signature(method).parameters
        if len(parameters) != 1 + len(expected):
            return f"{found.__name__}.{name} takes ({', '.join(parameters)}), and must be {signature}"
        return ""

    def refuse_impossible(self) -> None:
        """Raise ValueError where these settings can never work, whatever the rest of the recipe says."""
