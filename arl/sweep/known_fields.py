"""Check that what an axis sets is a field of a recipe, and suggest the nearest one where it is not."""

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel

from arl.config.chosen_section import ChosenSection
from arl.config.recipe import Recipe
from arl.config.section import inner_sections
from arl.errors import InputError

OF_THE_SWEEP = {
    "seed": "every arm runs with each of the seeds; give them by --seeds",
    "name": "the sweep names its runs; name the sweep by --name",
    "output": "it changes nothing that is computed, so no report could tell its arms apart; give it by --set",
}


def check_fields(fields: Iterable[str]) -> None:
    """Check that each field can be an axis.

    Raises:
        InputError: some cannot; it names all of them, each with the reason and the nearest field.
    """
    complaints = [complaint for field in dict.fromkeys(fields) for complaint in _complaints(field)]
    if complaints:
        raise InputError("\n".join(complaints))


def _complaints(field: str) -> Iterator[str]:
    reason = OF_THE_SWEEP.get(field.partition(".")[0])
    if reason is not None:
        yield f"axis {field}: {reason}"
    elif not _is_known(field):
        yield f"axis {field}: a recipe has no such field{_nearest(field)}"


def _is_known(field: str) -> bool:
    """Return whether recipes have the field, or may have it: a section with a `kind` can be of a class with any."""
    sections: list[type[BaseModel]] = [Recipe]
    for part in field.split("."):
        if any(issubclass(section, ChosenSection) for section in sections):
            return True
        found = [section.model_fields[part] for section in sections if part in section.model_fields]
        if not found:
            return not sections  # below a field that is no section, such as data.options
        sections = [inner for known in found for inner in inner_sections(known.annotation)]
    return True


def _nearest(field: str) -> str:
    """Suggest the field that is written most alike, or the fields that end in the same word."""
    known = list(_all_fields(Recipe))
    same_word = [name for name in known if name.rpartition(".")[2] == field.rpartition(".")[2]]
    close = difflib.get_close_matches(field, known, n=1) or same_word
    if not close:
        words = {name.rpartition(".")[2]: name for name in known}
        close = [words[word] for word in difflib.get_close_matches(field.rpartition(".")[2], words, n=1)]
    return f"; did you mean {' or '.join(close)}?" if close else "; docs/reference.md lists all of them"


def _all_fields(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"{prefix}{name}"
        inner: list[Any] = inner_sections(field.annotation)
        for part in inner:
            yield from _all_fields(part, f"{prefix}{name}.")
