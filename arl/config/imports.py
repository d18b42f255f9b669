"""User code by name: `module:function`, from installed packages or the current directory."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arl.errors import RecipeError


def import_function(name: str, field: str) -> Callable[..., Any]:
    """The function that recipe field `field` names.

    Raises:
        RecipeError: not of the form module:function, no such module or attribute, or not callable.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise RecipeError(f"{field} {name!r}: write it as module:function")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail at its import in any way
        raise RecipeError(
            f"{field} {name!r}: cannot import {module_name} ({error}); is it installed, or in {here}?"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise RecipeError(f"{field} {name!r}: {module_name} has no function {attribute}")
    return function  # type: ignore[no-any-return]
