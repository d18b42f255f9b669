"""Define sections of a recipe whose `kind` chooses the class that checks the rest of the section.

    objective: {kind: gspo, clip_low: 3e-4, …} ─► the class that `gspo` names ─► its fields are checked, its code runs

A kind is a short name from the section's table of built-ins, or `module:attribute` for user code. The class is imported
when the recipe is read, by its name, so that arl.config imports nothing of the rooms above it.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import ModelWrapValidatorHandler, model_validator

from arl.config.imports import check_seam, import_attribute
from arl.config.section import Section
from arl.errors import RecipeError


class ChosenSection(Section):
    """Stand for a section that is replaced by an object of the class that its `kind` names.

    A direct subclass is one seam: its ClassVars without a value are what a class must declare. The class that `BASE`
    names inherits from it and adds the abstract methods. Subclasses of that are the implementations.
    """

    kind: str = ""
    """Short name of a built-in, or `module:attribute`."""

    SECTION: ClassVar[str]  # its name in the recipe
    DEFAULT: ClassVar[str]  # a short name
    BUILT_IN: ClassVar[Mapping[str, str]]  # short name -> module:attribute
    BASE: ClassVar[str]  # module:attribute of the class that implementations inherit from
    EXAMPLE: ClassVar[str]  # the file of the built-in that is nearest to what a user writes

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
        """Import the class that `fields["kind"]` names.

        Raises:
            ValueError: an unknown name, or a class that lacks a part; it says the rule and the nearest example.
        """
        kind = fields.get("kind", cls.DEFAULT)
        try:
            return cls._import(kind)
        except RecipeError as error:
            raise ValueError(str(error)) from error  # so that the recipe's file names its line

    @classmethod
    def _import(cls, kind: Any) -> type[Self]:
        field = f"{cls.SECTION}.kind"
        base = import_attribute(cls.BASE, field)
        found = import_attribute(str(kind), field, cls.BUILT_IN)
        what = f"{field} {kind!r}"
        if not isinstance(found, type) or not issubclass(found, base):
            raise RecipeError(f"{what}: must be a subclass of {cls.BASE}; see {cls.EXAMPLE} for a complete one")
        check_seam(found, what, base, cls.EXAMPLE)
        return found

    def refuse_impossible(self) -> None:
        """Raise ValueError where these settings can never work, whatever the rest of the recipe says."""
