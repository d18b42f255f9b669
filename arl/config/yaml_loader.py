"""Read and write YAML: the core schema of YAML 1.2 and nothing else, in bounded time and memory.

text ─► PyYAML's events ─► nodes of bounded depth and number ─► values

What a document may hold:

==============  =====================================================================================
size            64 KiB, 20 levels, 2,000 values, where each use of an alias counts what it stands for
null            null, Null, NULL, ~ or nothing
true, false     true, True, TRUE, false, False, FALSE; yes, no, on and off are text
whole numbers   -7, 0o17, 0xff, of at most 64 bits; 017 is seventeen, 1_000 and 12:30:45 are text
numbers         1.5, .5, 1e-6; .inf and .nan; one that is too large for 64 bits is refused
mappings        each key once, as text; `<<` is a key like others
the rest        text, as dates are, without NUL and halves of surrogate pairs; tags such as !!int are refused
==============  =====================================================================================
"""

import math
import re
from typing import Any

import yaml

MOST_BYTES = 64 * 1024
MOST_LEVELS = 20
MOST_VALUES = 2000
NULLS = ("", "~", "null", "Null", "NULL")
TRUTHS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
WHOLE = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
INFINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
UNUSABLE = re.compile("[\\0\\ud800-\\udfff]")
MOST_DIGITS = 24  # of 64 bits, with a sign and some zeros before
BASES = {"0o": 8, "0x": 16}


class _Composer(yaml.SafeLoader):
    """Compose nodes of a bounded number and depth, which costs PyYAML a bounded time and Python's stack little."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  # scalars are resolved below
    depth = 0
    num_nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self.depth += 1
        self.num_nodes += 1
        _check_bounds(event.start_mark, self.depth, self.num_nodes)
        if getattr(event, "tag", None) is not None:  # an alias has none
            raise _mistake(event.start_mark, f"the tag {event.tag} has no meaning here; leave it out")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def load_yaml(text: str) -> Any:
    """Return the values of a YAML document.

    >>> load_yaml("{time: 24:00:00, nodes: 4, rate: 1e-6, day: 2001-01-01}")
    {'time': '24:00:00', 'nodes': 4, 'rate': 1e-06, 'day': '2001-01-01'}

    Raises:
        yaml.YAMLError: it is none, or holds what the table above excludes.
    """
    return values_of(compose(text))


def compose(text: str) -> yaml.Node | None:
    """Return the node of a YAML document, with the line of everything in it; None: the document is empty.

    Raises:
        yaml.YAMLError: see `load_yaml`.
    """
    if len(text) > MOST_BYTES:
        raise yaml.YAMLError(f"it has {len(text)} characters; at most {MOST_BYTES} are read")
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_Composer)
    except (ValueError, OverflowError) as error:  # PyYAML's chr() of \U00110000 and \UFFFFFFFF
        raise yaml.YAMLError(f"an escaped character does not exist ({error})") from None
    return node


def values_of(node: yaml.Node | None) -> Any:
    """Return the values of a composed document.

    Raises:
        yaml.YAMLError: see `load_yaml`.
    """
    return None if node is None else _Values().of(node, ())


class _Values:
    """Make values of nodes, and count them."""

    def __init__(self) -> None:
        self._num_values = 0

    def of(self, node: yaml.Node, key: tuple[str, ...]) -> Any:
        """Return the value of the node at `key`. A cycle of aliases meets the bound of levels."""
        self._num_values += 1
        _check_bounds(node.start_mark, len(key) + 1, self._num_values)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return [self.of(item, (*key, str(number))) for number, item in enumerate(node.value)]
        return self._mapping(node, key)

    def _mapping(self, node: yaml.Node, key: tuple[str, ...]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name_node, value in node.value:
            name = _name(name_node)
            inner = (*key, name)
            if name in values:
                raise _mistake(name_node.start_mark, f"{'.'.join(inner)} is given twice; keep one")
            values[name] = self.of(value, inner)
        return values


class _Dumper(yaml.SafeDumper):
    """Quote text that would be read as something else. PyYAML itself quotes what YAML 1.1 would."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    looks_like_another = bool(text in NULLS or text in TRUTHS or WHOLE.fullmatch(text) or NUMBER.fullmatch(text))
    style = "'" if looks_like_another else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


def dump_yaml(value: Any, flow: bool | None = False, width: float = 80) -> str:
    """Write values so that `load_yaml` reads them again.

    Args:
        flow: in braces and brackets; None: only what holds no other lists or mappings.
        width: characters of a line, where it can be broken.
    """
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, default_flow_style=flow, width=width)
    return text


def explain(error: yaml.YAMLError) -> tuple[int | None, str]:
    """Return the line that an error is about, from 1, and what is wrong there."""
    mark = getattr(error, "problem_mark", None)
    if not isinstance(error, yaml.MarkedYAMLError) or mark is None:
        return None, str(error)
    context = f"{error.context}, " if error.context else ""
    return mark.line + 1, f"{context}{error.problem} (column {mark.column + 1})"


def _name(key: yaml.Node) -> str:
    if not isinstance(key, yaml.ScalarNode):
        raise _mistake(key.start_mark, "a key is text, and this one is a list or a mapping")
    return _text(key)


def _text(node: yaml.ScalarNode) -> str:
    text: str = node.value
    found = UNUSABLE.search(text)
    if found:
        raise _mistake(node.start_mark, f"text holds no {found[0]!a}: neither files nor messages can")
    return text


def _scalar(node: yaml.ScalarNode) -> Any:
    text = _text(node)
    if node.style is not None:  # quoted, or a block
        return text
    try:
        return _plain(text)
    except ValueError as error:
        raise _mistake(node.start_mark, str(error)) from None


def _plain(text: str) -> Any:
    """Return what a scalar without quotes stands for.

    Raises:
        ValueError: a number that does not fit.
    """
    if text in NULLS:
        return None
    if text in TRUTHS:
        return TRUTHS[text]
    if WHOLE.fullmatch(text):
        return _whole_number(text)
    if NUMBER.fullmatch(text):
        return _number(text)
    if INFINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def _whole_number(text: str) -> int:
    if len(text) <= MOST_DIGITS:
        base = BASES.get(text[:2], 10)
        number = int(text, base)
        if -(2**63) <= number < 2**63:
            return number
    raise ValueError(f"{text} does not fit in 64 bits")


def _number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large for a number of 64 bits")
    return number


def _check_bounds(mark: Any, level: int, num_values: int) -> None:
    if level > MOST_LEVELS:
        raise _mistake(mark, f"it has more than {MOST_LEVELS} levels, with those that aliases repeat")
    if num_values > MOST_VALUES:
        raise _mistake(mark, f"it has more than {MOST_VALUES} values, with those that aliases repeat")


def _mistake(mark: Any, what: str) -> yaml.YAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=mark)
