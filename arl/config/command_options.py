"""Define arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

RecipePath = Annotated[Path, typer.Argument(help="Recipe YAML; see recipes/.", metavar="RECIPE")]
Model = Annotated[str, typer.Argument(help="Directory or Hugging Face name of a causal LM.", metavar="MODEL")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a field, as in --set rollout.staleness=0. Repeatable.", metavar="A.B=X"),
]
