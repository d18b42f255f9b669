"""Let tests call a solution that runs in another program. Both are this file, started by `judge()` or `solve()`.

    judge: the tests, and nothing of the solution  ── ["call", handle, arguments] ──►  solve: the solution alone
       └─► prints the verdict behind a secret word  ◄── ["value", …] or ["raised", …] ──

Messages are JSON behind their length. A value arrives as the plain type that it is, so that a solution decides neither
what `==` means nor what else runs beside the tests; anything that is not plain stays where it is, and a handle stands
for it. This file uses the standard library alone, because the sandbox has nothing else.
"""

import builtins
import json
import operator
import os
import select
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

SOLUTION = "solution.py"  # in the working folder of `solve`
MAX_REPLY = 8 << 20  # bytes
COLLECTIONS: dict[str, Callable[..., Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
MAKERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda digits: int(digits, 16),
    "bytes": bytes.fromhex,
    "complex": lambda parts: complex(*parts),
}
PLAIN_INT = 1 << 53  # beyond it, hexadecimal digits: decimal ones take quadratic time


class Unsupported(Exception):
    """Report that the tests pass something that cannot be sent."""


class SolutionFailed(Exception):
    """Report that the solution raised what is no Exception of Python, ended, or answered with something else."""


class SolutionSlow(BaseException):
    """Report that the time of a test is over. Tests that catch every Exception do not catch it."""


def pack(value: Any, keep: Callable[[Any], int]) -> Any:
    """Return what JSON can hold: None, bool, float, text and most integers as they are, anything else as [type, …].

    Args:
        keep: gives an object that is not plain a number.
    """
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return int(value) if -PLAIN_INT < value < PLAIN_INT else ["int", hex(value)]
    for name, kind in COLLECTIONS.items():
        if isinstance(value, kind):  # type: ignore[arg-type]
            return [name, [pack(each, keep) for each in value]]
    if isinstance(value, dict):
        return ["dict", [[pack(key, keep), pack(each, keep)] for key, each in value.items()]]
    if isinstance(value, bytes | bytearray):
        return ["bytes", value.hex()]
    if isinstance(value, complex):
        return ["complex", [value.real, value.imag]]
    return ["object", keep(value)]


def unpack(packed: Any, find: Callable[[int], Any]) -> Any:
    """Return the value that `pack` has encoded.

    Args:
        find: returns the object, or what stands for it, by its number.
    """
    if packed is None or isinstance(packed, bool | float | str | int):
        return packed
    name, content = packed
    if name in COLLECTIONS:
        return COLLECTIONS[name]([unpack(each, find) for each in content])
    if name == "dict":
        return {unpack(key, find): unpack(each, find) for key, each in content}
    if name == "object":
        return find(content)
    return MAKERS[name](content)


class Pipes:
    """Exchange messages with the other program."""

    def __init__(self) -> None:
        self._read = int(os.environ["ARL_PEER_READ"])
        self._write = int(os.environ["ARL_PEER_WRITE"])
        os.set_blocking(self._write, False)
        self.end = float("inf")  # on the clock: no exchange takes longer

    def send(self, message: Any) -> None:
        """Send a message.

        Raises:
            SolutionSlow: the other program does not read it in time.
            OSError: it has ended.
        """
        body = json.dumps(message).encode()
        data = memoryview(struct.pack(">I", len(body)) + body)
        while data:
            self._wait([], [self._write])
            data = data[os.write(self._write, data) :]

    def receive(self) -> Any:
        """Return the next message.

        Raises:
            SolutionSlow: there is none in time.
            EOFError: the other program has ended.
            ValueError: it is too long, or not JSON.
        """
        (length,) = struct.unpack(">I", self._bytes(4))
        if length > MAX_REPLY:
            raise ValueError(f"a message of {length} bytes; at most {MAX_REPLY}")
        return json.loads(self._bytes(length))

    def _bytes(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            self._wait([self._read], [])
            more = os.read(self._read, count - len(data))
            if not more:
                raise EOFError
            data += more
        return bytes(data)

    def _wait(self, reads: list[int], writes: list[int]) -> None:
        left = self.end - time.monotonic()
        if left <= 0 or not any(select.select(reads, writes, [], None if left == float("inf") else left)):
            raise SolutionSlow


# ---- the solution's side


def solve() -> None:
    """Run the solution in the file SOLUTION, and answer requests until the tests are over."""
    pipes = Pipes()
    with open(SOLUTION, encoding="utf-8") as file:
        code = file.read()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # what it prints is not read
    os.dup2(null, 2)
    objects: list[Any] = []
    namespace: dict[str, Any] = {"__name__": "solution"}
    failure: BaseException | None = None
    try:
        exec(compile(code, SOLUTION, "exec"), namespace)
    except BaseException as error:  # SystemExit, too: every call of its functions fails by it
        failure = error

    def keep(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    while True:
        try:
            operation, target, content = pipes.receive()
        except EOFError:
            return
        try:
            if failure is not None:
                raise failure
            if operation == "find":
                value = _find(namespace, target)
            else:
                arguments, named = unpack(content, objects.__getitem__)
                value = OPERATIONS[operation](objects[target], *arguments, **named)
            reply = ["value", pack(value, keep)]
        except BaseException as error:  # whatever a solution raises is an answer
            kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
            reply = ["raised", kinds[0]]
        pipes.send(reply)


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function: operator.call is not in every Python that a sandbox has."""
    return function(*args, **kwargs)


USED: tuple[Callable[..., Any], ...] = (call, operator.getitem, getattr, iter, next, len, bool)
OPERATIONS = {each.__name__: each for each in USED}


def _find(namespace: dict[str, Any], name: str) -> Any:
    """Return a function of the solution, or a method of its class Solution."""
    methods: Any = namespace.get("Solution")
    if hasattr(methods, name):
        return getattr(methods(), name)
    return namespace[name]


# ---- the tests' side


class Remote:
    """Stand for an object of the solution. It equals itself alone."""

    def __init__(self, number: int, ask: Callable[..., Any]) -> None:
        self._number = number
        self._ask = ask

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._ask("call", self._number, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._ask("getattr", self._number, name)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("getitem", self._number, key)

    def __iter__(self) -> Any:
        return self._ask("iter", self._number)

    def __next__(self) -> Any:
        return self._ask("next", self._number)

    def __len__(self) -> int:
        return int(self._ask("len", self._number))

    def __bool__(self) -> bool:
        return self._ask("bool", self._number) is True


class Judge:
    """Run tests against the solution at the other end of the pipes, and say how they end."""

    def __init__(self) -> None:
        self._pipes = Pipes()
        self._raised: BaseException | None = None  # the last that came from the solution

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return how many tests have passed, and the verdict of the first that has not; or why tests do not run."""
        namespace: dict[str, Any] = {"__name__": "tests"}
        passed, first = 0, ""
        begin = time.monotonic()
        try:
            exec(compile(task["setup"], "setup.py", "exec"), namespace)
            for test in task["tests"]:
                self._pipes.end = min(time.monotonic() + task["seconds"], begin + task["total_seconds"])
                verdict = self._verdict(task, test, namespace)
                passed += not verdict
                first = first or verdict
                if verdict in ("time", "ended") or (verdict and task["stops"]):
                    break  # a solution that hangs or has ended answers no other test
        except Exception as error:
            return {"broken": f"{type(error).__name__}: {error}"}
        return {"passed": passed, "verdict": "runtime" if first == "ended" else first}

    def _verdict(self, task: dict[str, Any], test: Any, namespace: dict[str, Any]) -> str:
        """Return "" for a passed test, or what went wrong."""
        try:
            for name in task["entries"]:
                if not isinstance(namespace.get(name), Remote):
                    namespace[name] = self._ask("find", name)
            if isinstance(test, str):
                exec(compile(test, "test.py", "exec"), namespace)
                return ""
            said = namespace[task["entries"][0]](*test["input"])
            return "" if is_expected(said, test["output"], task["unwraps"]) else "wrong"
        except (Unsupported, SyntaxError) as error:
            if error is self._raised:
                return "runtime"
            raise
        except SolutionSlow:
            return "time"
        except (OSError, EOFError, SolutionFailed):
            return "ended"
        except BaseException as error:
            if error is not self._raised:
                return "wrong"  # the test's own, on what it was given: an AssertionError, a TypeError
            return "memory" if isinstance(error, MemoryError) else "runtime"

    def _ask(self, operation: str, target: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._pipes.send([operation, target, pack((args, kwargs), _number_of)])
        try:
            kind, content = self._pipes.receive()
            if kind == "value":
                return unpack(content, lambda number: Remote(number, self._ask))
            raised = getattr(builtins, content)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError, struct.error) as error:
            raise SolutionFailed from error  # no message of `solve`, or one that no value has
        known = isinstance(raised, type) and issubclass(raised, Exception)
        self._raised = raised.__new__(raised) if known else SolutionFailed()  # some need arguments
        raise self._raised


def _number_of(value: Any) -> int:
    if isinstance(value, Remote):
        return value._number
    raise Unsupported(f"tests pass {type(value).__name__} to the solution, which cannot be sent to it")


def is_expected(said: Any, expected: Any, unwraps: bool) -> bool:
    """Compare a returned value with one that JSON wrote: a tuple is a list there.

    Args:
        unwraps: a set that may have put the value into a list of one.
    """
    if isinstance(said, tuple | list):
        said = [list(each) if isinstance(each, tuple) else each for each in said]
    wrapped = unwraps and isinstance(expected, list) and len(expected) == 1 and said == expected[0]
    return bool(said == expected or wrapped)


def judge() -> None:
    """Run the tests that stand in the standard input, and print the verdict behind their secret word."""
    task = json.loads(sys.stdin.read())
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # tests may print
    verdict = Judge().run(task)
    os.write(out, f"\n{task['secret']} {json.dumps(verdict)}\n".encode())
    os._exit(0)
