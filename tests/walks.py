"""Record, in every process of one real run, which files of arl see what passes from one end of the run to the other.

    run(recipe) ─► `arl train`, whose processes all import this module (by `sitecustomize`) ─► sys.setprofile
        ─► each call of a function of arl: its arguments, what it returns and what it yields ─► seen-PID.txt

A file sees a value if one of its functions takes, returns or yields it, alone or within tuples, records and arrays.
Objects that a method belongs to (`self`) do not count, and neither do bytes. So nothing here depends on names of arl's
files, functions and classes but `Controller.run`, which begins the first step.
"""

import contextlib
import inspect
import itertools
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = "ARL_TEST_WALKS"  # in the environment: where to write what was seen
MAIN = "ARL_TEST_WALKS_MAIN"  # the first process
FIRST_STEP = "Controller.run"
DEPTH = 5  # of records within records
MOST_ELEMENTS = 4096  # of an array that is looked through
GENERATES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
RECORDER = "import tests.walks\ntests.walks.record()\n"

REWARD = 0.8371582  # what the reward function of the recorded run returns, in every other call twice of it
_calls = itertools.count()


def reward(problem: Any, response: Any) -> float:
    """Return a number that no other quantity of the run is."""
    return REWARD * (1 + next(_calls) % 2)


class Seen:
    """Hold what the processes of one run have seen.

    Args:
        started: files with a function that was called in the first process before the first step.
        values: file ─► values.
        shallow: the same without what lies within records of records.
    """

    def __init__(self, folder: Path) -> None:
        self.started: set[str] = set()
        self.values: dict[str, set[str]] = {}
        self.shallow: dict[str, set[str]] = {}
        for path in folder.glob("seen-*.txt"):
            for line in path.read_text().splitlines():
                kind, file, value = line.split("\t")
                if kind == "called":
                    self.started.add(file)
                    continue
                self.values.setdefault(file, set()).add(value)
                if int(kind) <= 2:
                    self.shallow.setdefault(file, set()).add(value)

    def holders(self, values: set[str], shallow: bool = False) -> set[str]:
        """Return the files that have seen one of the values."""
        seen = self.shallow if shallow else self.values
        return {file for file, found in seen.items() if found & values}


def run(recipe: Path, folder: Path) -> Seen:
    """Train `recipe` in processes that record, in `folder`."""
    (folder / "sitecustomize.py").write_text(RECORDER)
    environment = {**os.environ, FOLDER: str(folder), "PYTHONPATH": f"{folder}:{ROOT}"}
    command = [sys.executable, "-m", "arl.cli", "train", str(recipe)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return Seen(folder)


def written(value: float) -> str:
    """Write a number as float32 has it, in which it travels."""
    return struct.pack("<f", value).hex()


def record() -> None:
    """Write from now on what functions of arl see; in every process that starts with FOLDER in its environment."""
    if FOLDER in os.environ:
        os.environ.setdefault(MAIN, str(os.getpid()))
        _Recorder(Path(os.environ[FOLDER]))


class _Recorder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._is_starting = os.environ[MAIN] == str(os.getpid())
        self._written: set[tuple[str, str, str]] = set()
        self._files: dict[CodeType, str] = {}
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def _on_event(self, frame: FrameType, event: str, value: Any) -> None:
        """Look at what a function takes, and at what it returns or yields."""
        if event not in ("call", "return"):  # of C
            return
        code = frame.f_code
        file = self._file(code)
        if not file:
            return
        if event == "return":
            self._look(file, value)
            return
        if self._is_starting:
            self._is_starting = code.co_qualname != FIRST_STEP
            self._write("called", file, "")
        if frame.f_lasti <= 1 or not code.co_flags & GENERATES:  # not where a coroutine goes on
            for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
                if name not in ("self", "cls"):
                    self._look(file, frame.f_locals.get(name))

    def _file(self, code: CodeType) -> str:
        """Return the file of a function of arl; empty for any other code."""
        if code not in self._files:
            _, is_ours, inside = code.co_filename.partition(f"{ROOT}/")
            is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
            self._files[code] = inside if is_ours and is_function and inside.startswith(("arl/", "kernels/")) else ""
        return self._files[code]

    def _look(self, file: str, value: Any) -> None:
        with contextlib.suppress(RuntimeError):  # of a tensor without numbers
            for depth, found in _leaves(value, 0):
                self._write(str(depth), file, found)

    def _write(self, kind: str, file: str, value: str) -> None:
        line = (kind, file, value)
        if line not in self._written:
            self._written.add(line)
            with open(self._folder / f"seen-{os.getpid()}.txt", "a") as out:
                out.write("\t".join(line) + "\n")


def _leaves(value: Any, depth: int) -> Iterator[tuple[int, str]]:
    """Yield the numbers and the paths in a value, and how deep they lie."""
    if isinstance(value, float):
        yield depth, written(value)
    elif isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if text.startswith("/") and text.isprintable():
            yield depth, text
    elif depth > DEPTH or value is None or isinstance(value, int | bytes | type):
        return
    elif hasattr(value, "dtype") and hasattr(value, "reshape"):
        yield from _elements(value, depth)
    elif isinstance(value, dict):
        for inner in list(value.values())[:MOST_ELEMENTS]:
            yield from _leaves(inner, depth + 1)
    elif isinstance(value, tuple | list):
        for inner in value[:MOST_ELEMENTS]:
            yield from _leaves(inner, depth + 1)
    else:
        names: Any = getattr(value, "__struct_fields__", ()) or getattr(value, "__dataclass_fields__", ())
        for name in names:
            yield from _leaves(getattr(value, name, None), depth + 1)


def _elements(array: Any, depth: int) -> Iterator[tuple[int, str]]:
    """Yield the elements of a small array of floating-point numbers, and the first one of a larger one."""
    if "float" not in str(array.dtype) or getattr(array, "is_meta", False):
        return
    if hasattr(array, "to_local"):  # a rank's part of a tensor
        array = array.to_local()
    flat = array.detach().reshape(-1) if hasattr(array, "detach") else array.reshape(-1)
    for number in flat[: MOST_ELEMENTS if len(flat) <= MOST_ELEMENTS else 1].tolist():
        yield depth + 1, written(number)
