"""Define arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer


def not_empty(option: typer.CallbackParam, value: str | None) -> str | None:
    """Return the value of an option, because an empty one would be read as another setting's.

    Raises:
        InputError: it is empty.
    """
    if value is not None and not value.strip():
        from arl.errors import InputError

        raise InputError(f"{option.opts[0]} {value!r}: must not be empty; give a value, or leave the option out")
    return value


RecipePath = Annotated[Path, typer.Argument(help="Recipe YAML; see recipes/.", metavar="RECIPE")]
Model = Annotated[str, typer.Argument(help="Directory or Hugging Face name of a causal LM.", metavar="MODEL")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a field, as in --set rollout.staleness=0. Repeatable.", metavar="A.B=X"),
]
