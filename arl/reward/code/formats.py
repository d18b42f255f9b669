"""Read the tests of a problem: our own form, or the columns of the data sets that people train on.

problem.metadata ─► the first column of FORMATS that it has ─► AssertTests | FunctionTests | OutputTests

A row is read where it is graded, and not before, because the tests of some sets are gigabytes when unpacked.
"""

import ast
import base64
import binascii
import builtins
import json
import pickletools
import re
import symtable
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from arl.errors import DataError
from arl.types import Problem

MAX_UNPACKED = 1 << 30  # bytes of the tests of one problem

# What programs for LeetCode take for granted, as in the harness of LiveCodeBench.
_OFFERED = "string re datetime collections heapq bisect copy math random statistics itertools functools operator typing"
PRELUDE = "".join(f"from {module} import *\n" for module in _OFFERED.split())
PRELUDE += f"import sys, {_OFFERED.replace(' ', ', ')}\nsys.setrecursionlimit(50000)\n"


class Tests(Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True):
    """Hold what all kinds of tests have."""

    prelude: str = ""  # put before the solution
    seconds: float = 6.0  # for each test
    memory_mb: int = 1024


class AssertTests(Tests, frozen=True, kw_only=True, tag="asserts"):
    """Run Python that asserts what functions of the solution return.

    >>> AssertTests(list=["assert double(2) == 4"]).entries
    ('double',)
    """

    list: tuple[str, ...]
    entries: tuple[str, ...] = ()  # functions of the solution; none: what the tests call and do not define
    setup: str = ""  # put before the tests

    def __post_init__(self) -> None:
        if not self.list:
            raise ValueError("there is no test")
        if not self.entries:
            self._infer_entries()
        ast.parse(self.setup)

    def _infer_entries(self) -> None:
        text = "\n".join((self.setup, *self.list))
        used = [each for each in _symbols(symtable.symtable(text, "tests", "exec")) if each.is_global()]
        own = {each.get_name() for each in used if each.is_assigned() or each.is_imported()}
        names = {each.get_name() for each in used} - own
        modules = sorted(names & sys.stdlib_module_names)
        entries = sorted(name for name in names.difference(modules) if not hasattr(builtins, name))
        if not entries:  # a function of the name of a built-in one, as `sum`
            entries = re.findall(r"^assert (\w+)\(", self.list[0])
        if not entries:
            raise ValueError("the tests call no function of a solution")
        imports = "".join(f"import {name}\n" for name in modules)
        msgspec.structs.force_setattr(self, "entries", tuple(entries))
        msgspec.structs.force_setattr(self, "setup", imports + self.setup)


def _symbols(table: symtable.SymbolTable) -> list[symtable.Symbol]:
    return [*table.get_symbols(), *(each for inner in table.get_children() for each in _symbols(inner))]


class Case(Struct, frozen=True):
    """Pair what a solution is given with what it must answer."""

    input: Any  # standard input, or a list of arguments
    output: Any


class FunctionTests(Tests, frozen=True, kw_only=True, tag="calls"):
    """Compare what a function, or a method of class Solution, returns."""

    entry: str
    cases: tuple[Case, ...]
    unwraps: bool = False  # an expected list of one value may stand for the value, as in APPS

    def __post_init__(self) -> None:
        for case in self.cases:
            if not isinstance(case.input, list):
                raise ValueError(f"the input {str(case.input)[:60]!r} of a call must be the list of its arguments")


class OutputTests(Tests, frozen=True, kw_only=True, tag="stdin"):
    """Compare what a program writes with what it should."""

    cases: tuple[Case, ...]
    checker: str = ""
    """Python that reads CHECKER_FILES, and prints a number above 0 if another output than the expected one is right."""

    def __post_init__(self) -> None:
        for case in self.cases:
            if not isinstance(case.input, str) or not isinstance(case.output, str):
                raise ValueError("input and output of a program must be text")


AnyTests = AssertTests | FunctionTests | OutputTests
CHECKER_FILES = ("input.txt", "correct_output.txt", "solution_output.txt")


def read_tests(problem: Problem) -> AnyTests:
    """Return the tests of a problem.

    Raises:
        DataError: it has none, in none of the known forms, or they are not valid.
    """
    row = problem.metadata
    column = next((name for name in FORMATS if row.get(name) is not None), None)
    if column is None:
        raise DataError(
            f"no tests: a problem of code needs one of the columns {', '.join(FORMATS)}, and this one has "
            f"{', '.join(row) or 'none'}; docs/data.md describes the form of each"
        )
    try:
        tests = FORMATS[column]({"prompt": problem.prompt} | row)
        if not isinstance(tests, AssertTests) and not tests.cases:
            raise ValueError("there is no test")
    except (ValueError, TypeError, LookupError, SyntaxError, AttributeError, zlib.error) as error:
        cause = f"has no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(
            f"column {column} holds no tests of a form that is known ({cause}); see docs/data.md"
        ) from error
    return tests


def _own(row: Mapping[str, Any]) -> AnyTests:
    """Read our own form, a dict with `kind`; or that of DeepCoder, which is that of TACO or a list of cases."""
    tests = _parsed(row["tests"])
    if isinstance(tests, dict) and "kind" in tests:
        own: AnyTests = msgspec.convert(tests, AnyTests)
        return own
    if isinstance(tests, dict):
        return _taco({"input_output": tests})
    first = tests[0]
    kind = first.get("testtype", first.get("type"))
    if kind not in ("functional", "function_call"):
        return _cases(None, tests)
    metadata = _parsed(first.get("metadata") or {})
    return _cases(first.get("fn_name") or metadata.get("func_name"), tests)


def _cases(entry: str | None, cases: list[dict[str, Any]], **settings: Any) -> FunctionTests | OutputTests:
    """Return tests of LiveCodeBench: arguments stand one a line, in JSON, or are a list already."""
    if entry is None:
        pairs = tuple(Case(_text(case["input"]), _text(case["output"])) for case in cases)
        return OutputTests(cases=pairs, prelude=PRELUDE, **settings)
    calls = []
    for case in cases:
        arguments = case["input"]
        if isinstance(arguments, str):
            arguments = [json.loads(line) for line in arguments.split("\n") if line.strip()]
        expected = case["output"]
        if isinstance(expected, str):
            expected = _value(expected)
        calls.append(Case(arguments, expected))
    is_json = isinstance(cases[0]["output"], str)
    return FunctionTests(entry=entry, cases=tuple(calls), unwraps=not is_json, prelude=PRELUDE, **settings)


def _livecodebench(row: Mapping[str, Any]) -> AnyTests:
    private = row["private_test_cases"]
    hidden = json.loads(private if private.lstrip().startswith("[") else _pickled_text(private))
    entry = _parsed(row.get("metadata") or {}).get("func_name")
    cases = [*json.loads(row["public_test_cases"]), *hidden]
    return _cases(entry if cases[0].get("testtype") == "functional" else None, cases)


def _pickled_text(packed: str) -> str:
    """Return the text in base64(zlib(pickle(text))). A pickle that is more than one text is refused, not loaded."""
    try:
        stream = zlib.decompressobj()
        pickled = stream.decompress(base64.b64decode(packed, validate=True), MAX_UNPACKED)
    except binascii.Error as error:
        raise ValueError(f"is neither JSON nor base64: {error}") from error
    texts = []
    for operation, argument, _ in pickletools.genops(pickled):
        if "UNICODE" in operation.name:
            texts.append(argument)
        elif operation.name not in ("PROTO", "FRAME", "MEMOIZE", "BINPUT", "STOP"):
            raise ValueError(f"its pickle holds {operation.name}, and may hold one text alone; write the cases as JSON")
    (text,) = texts
    return str(text)


def _taco(row: Mapping[str, Any]) -> AnyTests:
    """Read TACO and APPS: {inputs, outputs, fn_name}, with a limit as "2.0 seconds"."""
    tests = _parsed(row["input_output"])
    pairs = zip(tests["inputs"], tests["outputs"], strict=True)
    cases = [{"input": given, "output": expected} for given, expected in pairs]
    limits: dict[str, Any] = {}
    if seconds := _number(row.get("time_limit")):
        limits["seconds"] = seconds
    if not tests.get("fn_name"):
        return _cases(None, cases, **limits)
    calls = tuple(Case(_parsed(case["input"]), _parsed(case["output"])) for case in cases)
    return FunctionTests(entry=tests["fn_name"], cases=calls, unwraps=True, prelude=PRELUDE, **limits)


def _codeforces(row: Mapping[str, Any]) -> AnyTests:
    if row.get("input_mode", "stdio") != "stdio" or row.get("interaction_format"):
        raise ValueError("the problem reads a file or is interactive, and only standard input is supported")
    if not row.get("official_tests_complete", True):
        raise ValueError("its official tests are incomplete (official_tests_complete)")
    return OutputTests(
        cases=tuple(Case(case["input"], case["output"]) for case in row["official_tests"]),
        checker=row.get("generated_checker") or "",
        seconds=float(row.get("time_limit") or 2.0),
        memory_mb=int(row.get("memory_limit") or 256),
    )


def _codecontests(row: Mapping[str, Any]) -> AnyTests:
    cases: list[Case] = []
    for column in ("public_tests", "private_tests", "generated_tests"):
        tests = row.get(column) or {"input": [], "output": []}
        cases += map(Case, tests["input"], tests["output"])
    limit = row.get("time_limit") or {}
    seconds = (limit.get("seconds") or 0) + (limit.get("nanos") or 0) / 1e9
    memory = row.get("memory_limit_bytes") or 256 << 20
    return OutputTests(cases=tuple(cases), seconds=seconds or 6.0, memory_mb=memory >> 20)


def _mbpp(row: Mapping[str, Any]) -> AnyTests:
    setup = "\n".join([*(row.get("test_imports") or ()), row.get("test_setup_code") or ""])
    return AssertTests(list=tuple(row["test_list"]), setup=setup)


def _humaneval(row: Mapping[str, Any]) -> AnyTests:
    head, entry = row["prompt"], row["entry_point"]
    check = f"{row['test']}\ncheck({entry})\n"
    around = head[: head.index(f"def {entry}(")]  # imports and helpers, which a response may leave out
    return AssertTests(list=(check,), entries=(entry,), setup=head, prelude=around)


FORMATS: Mapping[str, Callable[[Mapping[str, Any]], AnyTests]] = {
    "tests": _own,
    "private_test_cases": _livecodebench,
    "input_output": _taco,
    "official_tests": _codeforces,
    "public_tests": _codecontests,
    "test_list": _mbpp,
    "entry_point": _humaneval,
}
"""Column by which a form is known -> what reads it."""


def _parsed(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _value(text: str) -> Any:
    """Read JSON; text that is none stands for itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _number(value: Any) -> float | None:
    """Read "2.0 seconds" or 2.0."""
    words = str(value or "").split()
    return float(words[0]) if words and words[0].replace(".", "", 1).isdecimal() else None
