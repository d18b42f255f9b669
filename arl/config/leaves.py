"""Flatten a recipe's sections into dotted fields."""

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of everything that is no section; an empty section is a value.

    >>> dict(leaves({"seed": 1, "model": {"path": "m", "options": {}}}))
    {'seed': 1, 'model.path': 'm', 'model.options': {}}
    """
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
