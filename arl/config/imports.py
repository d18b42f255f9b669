"""Import what a recipe names: a built-in by its short name, user code as `module:attribute`.

    name ─► table of built-ins ─► module:attribute ─► import ─► compared with the seam ─► the object

A seam is a Protocol, or a base class to inherit from. Its public methods and attributes are the parts to compare.

User code is looked for among installed packages and in the current directory. An attribute may be dotted, as in
`my_tasks:Sums.reward`. Everything is refused before a run starts: a name without an object, an object that lacks a
part of its seam, a part with another signature or with a value that the seam does not allow.

Importing a module runs its code, with the rights of the user. Whoever starts a recipe of somebody else, or plans it by
`--dry-run`, trusts the modules that it names.
"""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args, get_origin

from arl.errors import RecipeError

LONGEST_NAME = 250  # characters of a module's or an attribute's dotted name; a file's has at most 255 bytes
NO_BUILT_INS: Mapping[str, str] = {}
LIBRARIES = ("builtins", "typing", "pydantic")  # whose classes add no parts to a seam that inherits from them


def import_seam(
    name: str,
    field: str,
    protocol: type,
    example: str,
    built_in: Mapping[str, str] = NO_BUILT_INS,
) -> Any:
    """Import the object that recipe field `field` names, and check that it has every part of `protocol`.

        env = import_seam(recipe.rollout.env, "rollout.env", Env, example="arl.rollout.env:single_turn")

    Args:
        name: a key of `built_in`, or `module:attribute`.
        field: the recipe field, for messages.
        protocol: a Protocol class. One with `__call__` alone describes a function.
        example: the nearest built-in implementation, for messages.
        built_in: short name -> `module:attribute`, the table of the seam.

    Raises:
        RecipeError: the name leads to no object, or the object lacks a part or has another signature.
    """
    found = import_attribute(name, field, built_in)
    check_seam(found, f"{field} {name!r}", protocol, example)
    return found


def import_attribute(name: str, field: str, built_in: Mapping[str, str] = NO_BUILT_INS) -> Any:
    """Import the object that recipe field `field` names, whatever it is.

    Raises:
        RecipeError: neither a built-in nor of the form module:attribute, or no such module or attribute.
    """
    path = built_in.get(name, name)
    module_name, _, attribute = path.partition(":")
    if not _is_dotted_name(module_name) or not _is_dotted_name(attribute):
        raise RecipeError(_no_path(name, field, built_in))
    _look_in_current_directory()
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may fail at its import in any way, or end as a script
        raise RecipeError(
            f"{field} {name!r}: cannot import {module_name} ({error}); is it installed, or in {Path.cwd()}?"
        ) from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise RecipeError(f"{field} {name!r}: {module_name} has no attribute {attribute}{_similar(part, found)}")
        found = getattr(found, part)
    return found


def import_function(name: str, field: str) -> Callable[..., Any]:
    """Import the function that recipe field `field` names, without looking at its signature.

    Raises:
        RecipeError: no such module or attribute, or it cannot be called.
    """
    found = import_attribute(name, field)
    if not callable(found):
        raise RecipeError(f"{field} {name!r}: is {type(found).__name__}, and must be a function")
    return found  # type: ignore[no-any-return]


def check_seam(found: object, what: str, protocol: type, example: str) -> None:
    """Check that `found` (an instance, a class, a module or a function) has every part of `protocol`.

    A method must accept the arguments of the seam's method, and be `async` where that one is. An attribute of a class
    may also be a mere annotation, since instances will have it; a ClassVar must have a value, and one of the seam's
    Literal. A class that inherits from the seam also inherits its defaults; parts that the seam marks as abstract it
    must write itself.

    Args:
        what: how messages name the object, as in "data.task 'my_tasks:Arithmetic'".
        protocol: a Protocol, or a base class.

    Raises:
        RecipeError: a part is missing or has another signature. Says which, and names `example`.
    """
    see = f"; see {example} for a complete one"
    is_function = "__call__" in vars(protocol)
    if is_function and not callable(found):
        raise RecipeError(f"{what}: is {type(found).__name__}, and must be a function{see}")
    for part in _parts(protocol):
        if not is_function and not _has(found, part):
            raise RecipeError(f"{what}: lacks the {part}{see}")
        complaint = _complaint_of_function(found, part) if is_function else _complaint_of_part(found, part)
        if complaint:
            raise RecipeError(f"{what}: {complaint}{see}")


class _Part(NamedTuple):
    """Describe one public part of a seam: a method with its signature, without `self`; or an attribute."""

    name: str
    signature: inspect.Signature | None
    is_async: bool = False
    is_static: bool = False
    is_class_variable: bool = False
    allowed: tuple[object, ...] = ()
    """Values that the attribute may have; empty: any."""

    @property
    def arguments(self) -> str:
        """Return the signature without annotations, as in `(problem, response)`."""
        assert self.signature is not None
        parameters = self.signature.parameters.values()
        plain = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
        return str(inspect.Signature(plain))

    def example_arguments(self) -> tuple[list[object], dict[str, None]]:
        """Return something for each argument, by position and by name, as the rest of arl passes them."""
        assert self.signature is not None
        positional: list[object] = []
        by_name: dict[str, None] = {}
        for parameter in self.signature.parameters.values():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                positional.append(parameter.name)
            elif parameter.kind is parameter.KEYWORD_ONLY:
                by_name[parameter.name] = None
        return positional, by_name

    @property
    def may_be_async(self) -> bool:
        assert self.signature is not None
        returned = str(self.signature.return_annotation)
        awaited = ("Awaitable", "AsyncIterator", "AsyncGenerator", "Coroutine")  # not an AsyncContextManager
        return self.is_async or any(word in returned for word in awaited)

    def __str__(self) -> str:
        return f"attribute {self.name}" if self.signature is None else f"method {self.name}{self.arguments}"


def _parts(protocol: type) -> list[_Part]:
    """List every public part of a seam and of its bases, those of libraries left out."""
    parts: dict[str, _Part] = {}
    for base in reversed(protocol.__mro__):
        if base.__module__.partition(".")[0] in LIBRARIES:
            continue
        annotations = _annotations(base)
        for name in [*annotations, *vars(base)]:
            if name == "__call__" or not name.startswith("_"):
                parts[name] = _part(name, vars(base).get(name), annotations.get(name))
    return list(parts.values())


def _annotations(base: type) -> Mapping[str, Any]:
    """Return the annotations of the class itself, without those of its bases."""
    annotations = vars(base).get("__annotations__")
    return annotations if isinstance(annotations, Mapping) else {}  # of `type` it is a descriptor


def _part(name: str, value: object, annotation: object) -> _Part:
    is_static = isinstance(value, staticmethod)
    function = value.__func__ if isinstance(value, staticmethod) else value
    if not inspect.isfunction(function):
        is_class_variable = get_origin(annotation) is ClassVar
        return _Part(name, None, is_class_variable=is_class_variable, allowed=_allowed_values(annotation))
    signature = inspect.signature(function)
    if not is_static:
        without_self = list(signature.parameters.values())[1:]
        signature = signature.replace(parameters=without_self)
    return _Part(name, signature, inspect.iscoroutinefunction(function), is_static)


def _allowed_values(annotation: object) -> tuple[object, ...]:
    """Return the values that `ClassVar[Literal[…]]` or `ClassVar[bool]` allows; empty for any other annotation."""
    if get_origin(annotation) is not ClassVar:
        return ()
    (inner,) = get_args(annotation)
    if inner is bool:
        return (True, False)
    return get_args(inner) if get_origin(inner) is Literal else ()


def _has(found: object, part: _Part) -> bool:
    if hasattr(found, part.name):
        return not getattr(getattr(found, part.name), "__isabstractmethod__", False)
    if part.is_class_variable or not isinstance(found, type):
        return False
    return any(_declares_for_instances(base, part.name) for base in found.__mro__)


def _declares_for_instances(base: type, name: str) -> bool:
    annotations = _annotations(base)
    return name in annotations and get_origin(annotations[name]) is not ClassVar


def _complaint_of_function(found: Any, part: _Part) -> str:
    return _complaint(found, part, getattr(found, "__name__", "function"), takes_self=False)


def _complaint_of_part(found: object, part: _Part) -> str:
    if part.signature is not None:
        return _complaint_of_method(found, part)
    if part.allowed:
        value = getattr(found, part.name)
        if value not in part.allowed:
            return f"{part.name} is {value!r}, and must be one of {', '.join(map(repr, part.allowed))}"
    return ""


def _complaint_of_method(found: object, part: _Part) -> str:
    looked_up_in_class = isinstance(found, type) and inspect.isfunction(inspect.getattr_static(found, part.name))
    takes_self = looked_up_in_class and not part.is_static
    complaint = _complaint(getattr(found, part.name), part, part.name, takes_self)
    if complaint and looked_up_in_class and part.is_static:
        complaint += "; is it a @staticmethod?"
    return complaint


def _complaint(actual: Any, part: _Part, title: str, takes_self: bool) -> str:
    """Say why `actual` cannot be called as `part` is; empty where it can."""
    if not callable(actual):
        return f"{title} is {type(actual).__name__}, and must be a function {title}{part.arguments}"
    try:
        signature = inspect.signature(actual)
    except (TypeError, ValueError):  # a function written in C may not tell its signature
        return ""
    positional, by_name = part.example_arguments()
    if takes_self:
        positional = [object(), *positional]
    try:
        signature.bind(*positional, **by_name)
    except TypeError as error:
        return f"{title}{signature} cannot be called as {title}{part.arguments} ({error})"
    if part.is_async and not _is_async(actual):
        return f"{title} must be async: write `async def {title}{part.arguments}`"
    if _is_async(actual) and not part.may_be_async:
        return f"{title} must not be async: write `def {title}{part.arguments}`"
    return ""


def _is_async(function: Any) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__ is async as well
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _is_dotted_name(text: str) -> bool:
    return len(text) <= LONGEST_NAME and all(part.isidentifier() for part in text.split("."))


def _no_path(name: str, field: str, built_in: Mapping[str, str]) -> str:
    if not built_in:
        return f"{field} {name!r}: write it as module:attribute"
    close = difflib.get_close_matches(name, built_in, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"{field} {name!r}: {meant}give one of {', '.join(sorted(built_in))}, or your own as module:attribute"


def _similar(attribute: str, module: object) -> str:
    close = difflib.get_close_matches(attribute, dir(module), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _look_in_current_directory() -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
