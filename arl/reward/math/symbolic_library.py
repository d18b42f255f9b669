"""Import sympy and math-verify when they are first needed, so that the controller never does."""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple


class Library(NamedTuple):
    """Hold what math grading takes from sympy, and from math-verify and its parser."""

    sympy: Any
    latex2sympy: Callable[..., Any]
    is_complex: Callable[[str], bool]
    verify: Callable[..., bool]


@cache
def load_library() -> Library:
    """Import sympy and math-verify, which takes a second."""
    import sympy
    from latex2sympy2_extended import latex2sympy
    from math_verify.grader import should_treat_as_complex, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limit is off
    return Library(sympy, latex2sympy, should_treat_as_complex, verify)
