"""Import what a recipe names: a built-in by its short name, user code as `module:attribute`.

    name ─► table of built-ins ─► module:attribute ─► import ─► compared with the seam's Protocol ─► the object

User code is looked for among installed packages and in the current directory. Everything is refused before a run
starts: a name without an object, an object that lacks a part of its Protocol, a part with another signature.
"""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

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
    if not hasattr(module, attribute):
        raise RecipeError(f"{field} {name!r}: {module_name} has no attribute {attribute}{_similar(attribute, module)}")
    return getattr(module, attribute)


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
    class may also be a mere annotation, since instances will have it.

    Args:
        what: how messages name the object, as in "data.task 'my_tasks:Arithmetic'".

    Raises:
        RecipeError: a part is missing or has another signature. Says which, and names `example`.
    """
    see = f"; see {example} for a complete one"
    is_function = "__call__" in vars(protocol)
    if is_function and not callable(found):
        raise RecipeError(f"{what}: is {type(found).__name__}, and must be a function{see}")
    for part, expected in _parts(protocol).items():
        if not is_function and not _has(found, part):
            raise RecipeError(f"{what}: lacks {_described(part, expected)}{see}")
        if expected is not None:
            actual = found if is_function else getattr(found, part)
            title = getattr(found, "__name__", "function") if is_function else part
            complaint = _complaint(actual, expected, title, takes_self=_takes_self(found, part))
            if complaint:
                raise RecipeError(f"{what}: {complaint}{see}")


def _parts(protocol: type) -> dict[str, Callable[..., Any] | None]:
    """Every public part of a Protocol, with its bases': a method, or None for an attribute."""
    parts: dict[str, Callable[..., Any] | None] = {}
    for base in reversed(protocol.__mro__):
        if base in (object, Protocol) or base.__module__ == "typing":
            continue
        parts |= dict.fromkeys(n for n in vars(base).get("__annotations__", {}) if not n.startswith("_"))
        for name, value in vars(base).items():
            if name.startswith("_") and name != "__call__":
                continue
            if isinstance(value, property):
                parts[name] = None
            elif inspect.isfunction(value):
                parts[name] = value
    return parts


def _has(found: object, part: str) -> bool:
    if hasattr(found, part):
        return True
    return isinstance(found, type) and any(part in vars(base).get("__annotations__", {}) for base in found.__mro__)


def _takes_self(found: object, part: str) -> bool:
    """True for a plain method that is looked up in a class: its first parameter is the instance."""
    return isinstance(found, type) and inspect.isfunction(inspect.getattr_static(found, part, None))


def _described(part: str, expected: Callable[..., Any] | None) -> str:
    return f"the attribute {part}" if expected is None else f"the method {part}{_arguments(expected)}"


def _complaint(actual: Any, expected: Callable[..., Any], title: str, takes_self: bool) -> str:
    """Say why `actual` cannot be called as `expected` is; empty where it can."""
    if not callable(actual):
        return f"{title} is {type(actual).__name__}, and must be a function {title}{_arguments(expected)}"
    try:
        signature = inspect.signature(actual)
    except (TypeError, ValueError):  # a function written in C may not tell its signature
        return ""
    wanted = _parameters(expected)
    by_position: list[object] = [p.name for p in wanted if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name: None for p in wanted if p.kind is p.KEYWORD_ONLY}
    try:
        signature.bind(*([object()] if takes_self else []), *by_position, **by_name)
    except TypeError as error:
        return f"{title}{signature} cannot be called as {title}{_arguments(expected)} ({error})"
    if inspect.iscoroutinefunction(expected) and not _is_async(actual):
        return f"{title} must be async: write `async def {title}{_arguments(expected)}`"
    if _is_async(actual) and not _may_be_async(expected):
        return f"{title} must not be async: write `def {title}{_arguments(expected)}`"
    return ""


def _parameters(expected: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a Protocol's method, without `self`."""
    return list(inspect.signature(expected).parameters.values())[1:]


def _arguments(expected: Callable[..., Any]) -> str:
    named = [p.replace(annotation=p.empty) for p in _parameters(expected)]
    return str(inspect.Signature(named))


def _is_async(function: Any) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__ is async as well
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _may_be_async(expected: Callable[..., Any]) -> bool:
    returned = str(inspect.signature(expected).return_annotation)
    awaited = ("Awaitable", "AsyncIterator", "AsyncGenerator", "Coroutine")
    return inspect.iscoroutinefunction(expected) or any(word in returned for word in awaited)


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
