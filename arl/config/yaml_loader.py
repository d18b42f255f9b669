"""Read and write YAML by the core schema of YAML 1.2 and nothing else, in bounded time and memory.

    bytes ─► text ─► events of PyYAML's parser ─► values, and the line of every key

What a document may hold:

==============  =====================================================================================
size            128 KiB; 32 levels, 5,000 keys and values of 32,768 characters, where each use of an
                alias counts what it stands for; one document, in UTF-8
null            null, Null, NULL, ~ or nothing
true, false     true, True, TRUE, false, False, FALSE; yes, no, on and off are text
whole numbers   -7, 0o17, 0xff, of at most 64 bits; 017 is seventeen, 1_000 and 12:30:45 are text
numbers         1.5, .5, 1e-6; .inf and .nan; one that is too large for 64 bits is refused
mappings        each key once, as text, whatever it looks like; merge keys (<<) are refused
the rest        text, as dates are, without control characters; tags such as !!int are refused
==============  =====================================================================================
"""

import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml
from msgspec import Struct

from arl.config.mistakes import Key

MOST_BYTES = 1 << 17  # four times MOST_CHARACTERS, so that what was read can be written in full and read again
MOST_CHARACTERS = 1 << 15  # of all keys and values together
MOST_VALUES = 5_000
MOST_DEPTH = 32
MOST_DIGITS = 30  # of a whole number, before its size is known
LEAST_INTEGER = -(2**63)
MOST_INTEGER = 2**63 - 1

NULLS = ("", "~", "null", "Null", "NULL")
BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
SPECIAL_FLOAT = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
NO_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")  # tabs and ends of lines are
MERGE = "<<"


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


def read_document(data: bytes | str) -> Document:
    """Read one YAML document.

    Raises:
        YamlError: it is none, or breaks a rule; see the top of this file.
    """
    text = _decode(data) if isinstance(data, bytes) else data
    if len(text) > MOST_BYTES:
        raise YamlError(f"has {len(text)} characters, and may have {MOST_BYTES}")
    return _Reader(text).document()


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
    text: str = yaml.dump(
        values,
        Dumper=_Dumper,
        default_flow_style=flow,
        width=float("inf") if flow else None,
        sort_keys=False,
    )
    return text.removesuffix("...\n").strip() if flow else text  # YAML ends a document of one scalar by dots


class _Dumper(yaml.SafeDumper):
    """Quote what YAML 1.1 or the core schema would not read as text, and write everything in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _kind, _pattern in {"int": INTEGER, "float": FLOAT}.items():
    _Dumper.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_pattern.pattern})\Z"), list("-+.0123456789")
    )


class _Parser(yaml.SafeLoader):
    """Refuse deep nesting by brackets at once: PyYAML looks ahead, in time that grows with the square of the depth."""

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:
        if self.flow_level > MOST_DEPTH:
            problem = f"brackets are nested more than {MOST_DEPTH} deep"
            raise yaml.scanner.ScannerError(None, None, problem, self.get_mark())
        super().fetch_flow_collection_start(TokenClass)


def _decode(data: bytes) -> str:
    if len(data) > MOST_BYTES:
        raise YamlError(f"has {len(data)} bytes, and may have {MOST_BYTES}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise YamlError(f"the byte {data[error.start]:#04x} is not UTF-8; save the file as UTF-8", line) from None


class _Reader:
    """Make values of the parser's events. Nothing is ever larger than the bounds allow."""

    def __init__(self, text: str) -> None:
        self._events = _events(text)
        self._anchored: dict[str, Any] = {}
        self._num_values = 0
        self._num_characters = 0
        self._lines: dict[Key, int] = {}
        self._line = 1  # of the event at hand

    def document(self) -> Document:
        """Read all of it."""
        self._next()  # the stream begins
        event = self._next()
        if isinstance(event, yaml.StreamEndEvent):
            return Document(None, {})
        values = self._value(self._next(), ())
        self._next()  # the document ends
        if not isinstance(self._next(), yaml.StreamEndEvent):
            self._refuse("a second document begins here; keep one")
        return Document(values, self._lines)

    def _next(self) -> Any:
        event = next(self._events)
        self._line = event.start_mark.line + 1
        return event

    def _refuse(self, rule: str) -> NoReturn:
        raise YamlError(rule, self._line)

    def _value(self, event: Any, key: Key) -> Any:
        """Read the value that begins with `event`, at the place `key`."""
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchored:
                self._refuse(f"*{event.anchor}: no value before this one, and not around it, has the anchor")
            return self._copy(self._anchored[event.anchor], len(key))
        if event.tag is not None:
            self._refuse(f"{event.tag}: tags are not read; write the value alone, and text in quotes")
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event, len(key))
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._list(key)
        else:
            value = self._mapping(key)
        if event.anchor is not None:
            self._anchored[event.anchor] = value
        return value

    def _scalar(self, event: yaml.ScalarEvent, depth: int) -> Any:
        text = self._text(event, depth)
        is_plain = event.implicit[0]
        return self._resolve(text) if is_plain else text

    def _text(self, event: yaml.ScalarEvent, depth: int) -> str:
        text: str = event.value
        self._count(depth, len(text))
        found = NO_TEXT.search(text)
        if found is not None:
            self._refuse(f"the character {found[0]!a} cannot be part of a text; leave it out")
        return text

    def _list(self, key: Key) -> list[Any]:
        self._count(len(key), 0)
        values: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            values.append(self._value(event, (*key, len(values))))
        return values

    def _mapping(self, key: Key) -> dict[str, Any]:
        self._count(len(key), 0)
        values: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            name = self._name(event, key)
            child = (*key, name)
            if name in values:
                self._refuse(f"{'.'.join(map(str, child))} is given twice; keep one")
            self._lines[child] = self._line
            values[name] = self._value(self._next(), child)
        return values

    def _name(self, event: Any, key: Key) -> str:
        """Read a key of a mapping, which is text, whatever it looks like."""
        if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
            self._refuse("the key of a mapping is text, without a tag; write it as name: value")
        if event.value == MERGE:
            self._refuse("<<: merge keys are not read; write the fields out")
        return self._text(event, len(key))

    def _resolve(self, text: str) -> Any:
        """Return what an unquoted scalar is in the core schema."""
        if text in NULLS:
            return None
        if text in BOOLEANS:
            return BOOLEANS[text]
        if INTEGER.fullmatch(text):
            return self._integer(text)
        if FLOAT.fullmatch(text):
            return self._float(text)
        if SPECIAL_FLOAT.fullmatch(text):
            return float(text.lower().replace(".", ""))
        return text

    def _integer(self, text: str) -> int:
        base = {"0x": 16, "0o": 8}.get(text[:2], 10)
        number = int(text, base) if len(text) <= MOST_DIGITS else math.inf
        if isinstance(number, float) or not LEAST_INTEGER <= number <= MOST_INTEGER:
            self._refuse(f"{text}: is beyond 64 bits; give a smaller number")
        return number

    def _float(self, text: str) -> float:
        number = float(text)
        if math.isinf(number):
            self._refuse(f"{text}: is too large for a number of 64 bits; write .inf for an infinite one")
        return number

    def _copy(self, value: Any, depth: int) -> Any:
        """Copy what an alias stands for, so that it counts as if it were written out."""
        self._count(depth, len(value) if isinstance(value, str) else 0)
        if isinstance(value, list):
            return [self._copy(inner, depth + 1) for inner in value]
        if isinstance(value, dict):
            for name in value:
                self._count(depth, len(name))
            return {name: self._copy(inner, depth + 1) for name, inner in value.items()}
        return value

    def _count(self, depth: int, characters: int) -> None:
        """Add a key or value at this depth to what was read so far."""
        self._num_values += 1
        self._num_characters += characters
        if depth > MOST_DEPTH:
            self._refuse(f"is nested more than {MOST_DEPTH} deep")
        if self._num_values > MOST_VALUES:
            self._refuse(f"here are more than {MOST_VALUES} keys and values, with what aliases stand for")
        if self._num_characters > MOST_CHARACTERS:
            self._refuse(f"here are more than {MOST_CHARACTERS} characters of text, with what aliases stand for")


def _events(text: str) -> Iterator[Any]:
    """Yield the events of PyYAML's parser.

    Raises:
        YamlError: the text is not YAML. PyYAML raises ValueError and OverflowError for escapes beyond Unicode, as in
            "\\UFFFFFFFF", and for version numbers of thousands of digits.
    """
    try:
        yield from yaml.parse(text, Loader=_Parser)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise YamlError(f"not valid YAML: {said}", mark.line + 1 if mark else None) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlError(f"not valid YAML: {error.reason}: {chr(error.character)!a}", line) from None
    except (ValueError, OverflowError) as error:
        raise YamlError(f"not valid YAML: {error}") from None
