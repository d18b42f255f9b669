"""Share the models of the engines' tests."""

from tests.engine.conftest import new, old

__all__ = ["new", "old"]
