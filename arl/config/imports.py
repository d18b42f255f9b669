"""Import what a recipe names: a built-in by its short name, user code as `module:attribute`.

    name ─► table of built-ins ─► module:attribute ─► import ─► compared with the seam's Protocol ─► the object

User code is looked for among installed packages and in the current directory. An attribute may be dotted, as in
`my_tasks:Sums.reward`. Everything is refused before a run starts: a name without an object, an object that lacks a
part of its Protocol, a part with another signature.
"""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from arl.errors import RecipeError

NO_BUILT_INS: Mapping[str, str] = {}


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
    if not module_name or not attribute:
        raise RecipeError(_no_path(name, field, built_in))
    _look_in_current_directory()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail at its import in any way
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

    A method must accept the arguments of the Protocol's method, and be `async` where that one is. An attribute of a
    class may also be a mere annotation, since instances will have it. A class that inherits from the Protocol also
    inherits its defaults; parts that the Protocol marks as abstract it must write itself.

    Args:
        what: how messages name the object, as in "data.task 'my_tasks:Arithmetic'".

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
        if part.signature is not None:
            complaint = _complaint_of_function(found, part) if is_function else _complaint_of_method(found, part)
            if complaint:
                raise RecipeError(f"{what}: {complaint}{see}")


class _Part(NamedTuple):
    """One public part of a Protocol: a method with its signature, without `self`; or an attribute."""

    name: str
    signature: inspect.Signature | None
    is_async: bool = False
    is_static: bool = False

    @property
    def arguments(self) -> str:
        """The signature without annotations, as in `(problem, response)`."""
        assert self.signature is not None
        plain = [p.replace(annotation=p.empty) for p in self.signature.parameters.values()]
        return str(inspect.Signature(plain))

    @property
    def may_be_async(self) -> bool:
        assert self.signature is not None
        returned = str(self.signature.return_annotation)
        awaited = ("Awaitable", "AsyncIterator", "AsyncGenerator", "Coroutine")  # not an AsyncContextManager
        return self.is_async or any(word in returned for word in awaited)

    def __str__(self) -> str:
        return f"attribute {self.name}" if self.signature is None else f"method {self.name}{self.arguments}"


def _parts(protocol: type) -> list[_Part]:
    """Every public part of a Protocol and of its bases."""
    parts: dict[str, _Part] = {}
    for base in reversed(protocol.__mro__):
        if base is object or base.__module__ == "typing":
            continue
        annotated = vars(base).get("__annotations__", {})
        for name in [*annotated, *vars(base)]:
            if name == "__call__" or not name.startswith("_"):
                parts[name] = _part(name, vars(base).get(name))
    return list(parts.values())


def _part(name: str, value: object) -> _Part:
    is_static = isinstance(value, staticmethod)
    function = value.__func__ if isinstance(value, staticmethod) else value
    if not inspect.isfunction(function):
        return _Part(name, None)
    signature = inspect.signature(function)
    if not is_static:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    return _Part(name, signature, inspect.iscoroutinefunction(function), is_static)


def _has(found: object, part: _Part) -> bool:
    if hasattr(found, part.name):
        return not getattr(getattr(found, part.name), "__isabstractmethod__", False)
    return isinstance(found, type) and any(part.name in vars(base).get("__annotations__", {}) for base in found.__mro__)


def _complaint_of_function(found: Any, part: _Part) -> str:
    return _complaint(found, part, getattr(found, "__name__", "function"), takes_self=False)


def _complaint_of_method(found: object, part: _Part) -> str:
    looked_up_in_class = isinstance(found, type) and inspect.isfunction(inspect.getattr_static(found, part.name))
    takes_self = looked_up_in_class and not part.is_static
    complaint = _complaint(getattr(found, part.name), part, part.name, takes_self)
    if complaint and looked_up_in_class and part.is_static:
        complaint += "; is it a @staticmethod?"
    return complaint


def _complaint(actual: Any, part: _Part, title: str, takes_self: bool) -> str:
    """Say why `actual` cannot be called as `part` is; empty where it can."""
    assert part.signature is not None
    if not callable(actual):
        return f"{title} is {type(actual).__name__}, and must be a function {title}{part.arguments}"
    try:
        signature = inspect.signature(actual)
    except (TypeError, ValueError):  # a function written in C may not tell its signature
        return ""
    wanted = part.signature.parameters.values()
    by_position: list[object] = [p.name for p in wanted if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name: None for p in wanted if p.kind is p.KEYWORD_ONLY}
    try:
        signature.bind(*([object()] if takes_self else []), *by_position, **by_name)
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
