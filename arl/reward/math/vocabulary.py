"""Read vocabulary.toml, where the words, names and signs of mathematics are listed."""

import tomllib
from importlib.resources import files
from typing import Any

TABLES: dict[str, dict[str, Any]] = tomllib.loads(files(__package__).joinpath("vocabulary.toml").read_text("utf-8"))


def words(name: str) -> list[str]:
    """Return the words of a list."""
    return str(TABLES["words"][name]).split()


def one_of(name: str) -> str:
    """Return a pattern for the words of a list, which may stand in a verbose one."""
    return rf"(?:{'|'.join(words(name))})"


def first_spellings(table: str) -> dict[str, str]:
    """Return the first spelling for each of a table."""
    return {spelling: first for first, others in TABLES[table].items() for spelling in (first, *others.split())}
