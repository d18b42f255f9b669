"""Read and write YAML by the core schema of YAML 1.2, with the line of every key.

    text ─► nodes of PyYAML's composer ─► values, and the line of every key

Keys are text, whatever they look like, and each is given once. yes, no, on, off, dates, 1_000 and 12:30:45 are text as
well; 017 is seventeen and 0o17 fifteen.
"""

import re
from typing import Any

import yaml
from msgspec import Struct

Key = tuple[str | int, ...]
DIGITS = list("-+.0123456789")
FLOAT = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
RESOLVED = (  # of scalars without quotes: kind, what they look like, their first characters
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", "true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", DIGITS),
    ("float", FLOAT, DIGITS),
)


class YamlError(ValueError):
    """Report that a text is not read: the rule, and the line, which is None for the text as a whole."""

    def __init__(self, rule: str, line: int | None = None) -> None:
        super().__init__(rule if line is None else f"line {line}: {rule}")
        self.rule = rule
        self.line = line


class Document(Struct, frozen=True):
    """Hold what a YAML document says.

    Args:
        lines: key -> its line, from 1 on. A key is the way to it: ("rollout", "lag"); indices of lists are part of it.
    """

    values: Any
    lines: dict[Key, int]


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as PyYAML declares it

    def read(self, node: Any, key: Key, lines: dict[Key, int]) -> Any:
        """Return the value of a node, and put the lines of the keys in it into `lines`."""
        if isinstance(node, yaml.SequenceNode):
            return [self.read(inner, (*key, number), lines) for number, inner in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return self.construct_object(node)
        values = {}
        for name, inner in node.value:
            line = name.start_mark.line + 1
            if not isinstance(name, yaml.ScalarNode):
                raise YamlError("the key of a mapping is text; write it as name: value", line)
            child = (*key, name.value)
            if name.value in values:
                raise YamlError(f"{'.'.join(map(str, child))} is given twice; keep one", line)
            lines[child] = line
            values[name.value] = self.read(inner, child, lines)
        return values

    def integer(self, node: Any) -> int:
        """Return a whole number; 017 is seventeen, unlike in YAML 1.1."""
        return int(node.value, {"0x": 16, "0o": 8}.get(node.value[:2], 10))


class _Dumper(yaml.SafeDumper):
    """Quote what YAML 1.1 or the core schema would not read as text, and write everything in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _kind, _pattern, _first in RESOLVED:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_pattern})\Z"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.integer)


def read_document(data: bytes | str) -> Document:
    """Read one YAML document.

    Raises:
        YamlError: it is none, or a key is given twice.
    """
    lines: dict[Key, int] = {}
    try:
        loader = _Loader(data.decode("utf-8-sig") if isinstance(data, bytes) else data)
        node = loader.get_single_node()
        return Document(None if node is None else loader.read(node, (), lines), lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise YamlError(f"not valid YAML: {error.problem}", mark.line + 1 if mark else None) from None
    except YamlError:
        raise
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # bytes, a character, a number or a depth that is not read
        raise YamlError(f"not valid YAML: {error}") from None


def load_yaml(text: str) -> Any:
    """Return the values of a YAML document.

    >>> load_yaml("{time: 24:00:00, nodes: 4, rate: 1e-6, track: off}")
    {'time': '24:00:00', 'nodes': 4, 'rate': 1e-06, 'track': 'off'}

    Raises:
        YamlError: see read_document.
    """
    return read_document(text).values


def dump_yaml(values: Any, *, flow: bool = False) -> str:
    """Write values as YAML that `load_yaml` reads as the same values; with `flow` on one line.

    >>> dump_yaml({"a": "1e-6", "b": [None, 1e-6]}, flow=True)
    "{a: '1e-6', b: [null, 1.0e-06]}"
    """
    width = float("inf") if flow else None
    text: str = yaml.dump(values, Dumper=_Dumper, default_flow_style=flow, width=width, sort_keys=False)
    return text.removesuffix("...\n").strip() if flow else text  # YAML ends a document of one scalar by dots
