"""Import what a recipe names: a built-in by its short name, user code as `module:attribute`.

    name ─► table of built-ins ─► module:attribute ─► import ─► has it every part of the seam? ─► the object

A seam is a Protocol, or a base class to inherit from. One with `__call__` describes a function.

User code is looked for among installed packages and in the current directory. An attribute may be dotted, as in
`my_tasks:Sums.reward`. Importing a module runs its code, with the rights of the user. Who starts a recipe of somebody
else, or plans it by `--dry-run`, trusts the modules that it names.
"""

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin

from arl.errors import RecipeError

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
    module_name, _, attribute = built_in.get(name, name).partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise RecipeError(_no_path(name, field, built_in))
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may fail at its import in any way, or end as a script
        raise RecipeError(
            f"{field} {name!r}: cannot import {module_name} ({error}); is it installed, or in {here}?"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, dir(found), n=1)
            meant = f"; did you mean {close[0]}?" if close else ""
            raise RecipeError(f"{field} {name!r}: {module_name} has no attribute {attribute}{meant}")
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

    A method must accept the arguments of the seam's method, and be `async` where that one is. An attribute that the
    seam declares as a ClassVar[Literal] has one of its values. Parts that the seam marks as abstract must be written.

    Args:
        what: how messages name the object, as in "data.task 'my_tasks:Arithmetic'".

    Raises:
        RecipeError: a part is missing or has another signature. Says which, and names `example`.
    """
    is_function = "__call__" in vars(protocol)
    for name, part in _parts(protocol).items():
        if is_function == (name == "__call__"):
            complaint = _complaint(found, name, part)
            if complaint:
                raise RecipeError(f"{what}: {complaint}; see {example} for a complete one")


def _parts(protocol: type) -> dict[str, Any]:
    """Return each public name of a seam and of its bases, with its value or its annotation."""
    parts: dict[str, Any] = {}
    for base in reversed(protocol.__mro__):
        if base.__module__.partition(".")[0] not in LIBRARIES:
            named = {**inspect.get_annotations(base), **vars(base)}
            parts |= {name: part for name, part in named.items() if name == "__call__" or name[0] != "_"}
    return parts


def _complaint(found: Any, name: str, part: Any) -> str:
    """Say what is wrong with one part of `found`; empty if nothing is."""
    is_static = isinstance(part, staticmethod)
    function = part.__func__ if is_static else part
    if not inspect.isfunction(function):
        return _complaint_of_attribute(found, name, part)
    parameters = [one.replace(annotation=one.empty) for one in inspect.signature(function).parameters.values()]
    if not is_static:
        del parameters[0]
    arguments = str(inspect.Signature(parameters))
    is_method = name != "__call__"
    actual = getattr(found, name, None) if is_method else found
    title = name if is_method else getattr(found, "__name__", "function")
    if is_method and (actual is None or getattr(actual, "__isabstractmethod__", False)):
        return f"lacks the method {name}{arguments}"
    if not callable(actual):
        return f"is {type(actual).__name__}, and must be a function {title}{arguments}"
    by_name = {one.name: None for one in parameters if one.kind is one.KEYWORD_ONLY}
    by_position: list[Any] = [one for one in parameters if one.name not in by_name]
    if is_method and isinstance(found, type) and inspect.isfunction(inspect.getattr_static(found, name)):
        by_position.insert(0, found)  # self of a class that is not made yet
    signature = inspect.signature(actual)
    try:
        signature.bind(*by_position, **by_name)
    except TypeError as error:
        return f"{title}{signature} cannot be called as {title}{arguments} ({error})"
    if inspect.iscoroutinefunction(function) and not _is_async(actual):
        return f"{title} must be async: write `async def {title}{arguments}`"
    return ""


def _complaint_of_attribute(found: Any, name: str, annotation: Any) -> str:
    is_of_class = get_origin(annotation) is ClassVar
    if not hasattr(found, name):
        declared = any(name in inspect.get_annotations(base) for base in getattr(found, "__mro__", ()))
        return "" if declared and not is_of_class else f"lacks the attribute {name}"
    choices = [inner for inner in get_args(annotation) if is_of_class and get_origin(inner) is Literal]
    allowed = [value for literal in choices for value in get_args(literal)]
    if allowed and getattr(found, name) not in allowed:
        return f"{name} is {getattr(found, name)!r}, and must be one of {', '.join(map(repr, allowed))}"
    return ""


def _is_async(function: Any) -> bool:
    method = getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__ is async as well
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(method)


def _no_path(name: str, field: str, built_in: Mapping[str, str]) -> str:
    if not built_in:
        return f"{field} {name!r}: write it as module:attribute"
    close = difflib.get_close_matches(name, built_in, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"{field} {name!r}: {meant}give one of {', '.join(sorted(built_in))}, or your own as module:attribute"
