"""Read the templates of prompts: text with {column} fields, where {{ and }} stand for braces."""

from collections.abc import Iterator
from string import Formatter


def template_fields(template: str) -> list[str]:
    """Return the names of the fields in their order.

    >>> template_fields("{question}\\nPut the answer in \\\\boxed{{}}.")
    ['question']

    Raises:
        ValueError: a brace without its partner, a field without a name, or one with a conversion or a format.
    """
    return [name for _, name in _parts(template) if name is not None]


def fill_template(template: str, values: dict[str, str]) -> str:
    """Put the values in place of the fields."""
    pieces = []
    for text, name in _parts(template):
        pieces.append(text)
        if name is not None:
            pieces.append(values[name])
    return "".join(pieces)


def _parts(template: str) -> Iterator[tuple[str, str | None]]:
    """Yield each piece of text with the name of the field after it."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{error}; write {{{{ and }}}} for braces that are text, as in \\boxed{{{{}}}}") from error
    for text, name, layout, conversion in parts:
        if name == "":
            raise ValueError("{} names no column; write {{}} for braces that are text, as in \\boxed{{}}")
        if layout or conversion:
            raise ValueError(f"{{{name}}}: a field is the name of a column alone, without a format or conversion")
        yield text, name
