"""Read YAML without the numbers to base 60 of YAML 1.1, which YAML 1.2 no longer has."""

from typing import Any

import yaml

NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
TEXT = "tag:yaml.org,2002:str"


class RecipeLoader(yaml.SafeLoader):
    """Read times as text.

    PyYAML alone reads `24:00:00` as 86400 and `08:00:00` as text, so that a time limit of one day would become 60 days,
    because sbatch takes a plain number for minutes.
    """

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return TEXT if tag in NUMBERS and ":" in value else tag


def load_yaml(text: str) -> Any:
    """Return the values of a YAML document.

    >>> load_yaml("{time: 24:00:00, nodes: 4}")
    {'time': '24:00:00', 'nodes': 4}

    Raises:
        yaml.YAMLError: it is none.
    """
    return yaml.load(text, Loader=RecipeLoader)
