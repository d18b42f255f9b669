"""Grade programs by their tests, in the sandbox. The judge never shares a process or a descriptor with a solution.

response ─► find_code ─► OutputTests: one program for each case, whose output is compared here
                    └──► AssertTests, FunctionTests: the tests in one program, the solution in another (rpc.py)
                                         └─► passed, and the verdict of the first failed test ─► parts of the reward
"""

import functools
import importlib.util
import itertools
import json
import marshal
import re
import secrets
import sys
import time
from decimal import Decimal, InvalidOperation
from pathlib import Path

import msgspec

from arl.errors import DataError
from arl.reward.code import rpc
from arl.reward.code.formats import CHECKER_FILES, AssertTests, FunctionTests, OutputTests, read_tests
from arl.sandbox.base import Program, Sandbox
from arl.sandbox.current import sandbox
from arl.types import CORRECT, Problem, Response

VERDICTS = ("wrong", "time", "memory", "runtime", "no_code")
TOTAL_SECONDS = 60.0  # for all tests of a response; those beyond fail by `time`
START_SECONDS = 5.0  # for programs to start and end
MAX_CODE = 100_000  # characters
_FENCE = re.compile(r"^[ \t]*```[ \t]*(?P<language>[\w+#.-]*)[^\n]*\n(?P<code>.*?)(?:^[ \t]*```|\Z)", re.M | re.S)
_PYTHON = ("python", "python3", "py")
Ended = tuple[float, str]  # share of the tests that passed; verdict of the first that has not, or ""


def score(problem: Problem, response: Response) -> dict[str, float]:
    """Return `correct`, 1 if every test passes; the share that has `passed`; and 1 for the verdict of a failure.

    The reward is `correct`. No test runs after the first that has failed, so `passed` is the share of those before it.
    """
    return _parts(*_grade(problem, response, stops=True))


def score_each(problem: Problem, response: Response) -> dict[str, float]:
    """Return the same parts as `score`, of which the reward is `passed`. Every test runs."""
    return _parts(*_grade(problem, response, stops=False))


def vote(response: Response) -> str:
    """Return no answer: two programs that do the same are not equal as text, so programs do not vote."""
    return ""


unweighted = dict.fromkeys(("passed", *VERDICTS), 0.0)
score.weights = unweighted  # type: ignore[attr-defined]
score_each.weights = unweighted | {CORRECT: 0.0, "passed": 1.0}  # type: ignore[attr-defined]
for function in (score, score_each):
    function.seconds = TOTAL_SECONDS + 4 * START_SECONDS  # type: ignore[attr-defined]  # that a call may take
    function.uses_sandbox = True  # type: ignore[attr-defined]  # so that a run opens it before anything starts


def _parts(passed: float, verdict: str) -> dict[str, float]:
    verdicts = {name: float(name == verdict) for name in VERDICTS}
    return {CORRECT: float(not verdict), "passed": passed, **verdicts}


def _grade(problem: Problem, response: Response, stops: bool) -> Ended:
    tests = read_tests(problem)
    code = find_code(response.text)
    if code is None:
        return 0.0, "no_code"
    code = tests.prelude + code
    if isinstance(tests, OutputTests):
        return _run_streams(sandbox(), code, tests, stops)
    return _run_calls(sandbox(), code, tests, stops)


def find_code(text: str) -> str | None:
    """Return the last fenced block of Python behind a thought, else the last fenced block, else None.

    >>> find_code("So:\\n```python\\nprint(1)\\n```\\nIt prints 1.")
    'print(1)\\n'
    """
    _, closed, rest = text.rpartition("</think>")
    if not closed and "<think>" in text:
        return None
    blocks = [(found["language"].lower(), found["code"]) for found in _FENCE.finditer(rest)]
    python = [code for language, code in blocks if language in _PYTHON]
    codes = python or [code for _, code in blocks]
    return codes[-1] if codes and len(codes[-1]) <= MAX_CODE else None


def _run_streams(box: Sandbox, code: str, tests: OutputTests, stops: bool) -> Ended:
    """Run the program on each case."""
    end = time.monotonic() + TOTAL_SECONDS
    passed, first = 0, ""
    for case in tests.cases:
        seconds = min(tests.seconds, end - time.monotonic())
        verdict = "time"
        if seconds > 0:
            program = Program(code=code, stdin=case.input, seconds=seconds, memory_mb=tests.memory_mb)
            result = box.run(program)
            verdict = {"done": "", "error": "runtime", "output": "wrong"}.get(result.outcome, result.outcome)
            if not verdict and not _is_right(box, tests, case.input, case.output, result.stdout):
                verdict = "wrong"
        passed += not verdict
        first = first or verdict
        if (verdict and stops) or seconds <= 0:
            break
    return passed / len(tests.cases), first


def _is_right(box: Sandbox, tests: OutputTests, given: str, expected: str, said: str) -> bool:
    """Compare an output, or let the set's own checker do it, in a program of its own."""
    if same_output(said, expected):
        return True
    if not tests.checker:
        return False
    contents = (given.encode(), expected.encode(), said.encode())
    arguments = f"import sys\nsys.argv = ['checker.py', *{CHECKER_FILES!r}]\n"
    files = dict(zip(CHECKER_FILES, contents, strict=True))
    program = Program(code=arguments + tests.checker, files=files, seconds=START_SECONDS + tests.seconds)
    result = box.run(program)
    try:
        return result.outcome == "done" and float(result.stdout.split()[-1]) > 0
    except (IndexError, ValueError) as error:
        raise DataError(f"the checker printed {result.stdout[:60]!r}, and must print a number") from error


def same_output(said: str, expected: str) -> bool:
    """Return whether two outputs are equal, line by line and word by word, without regard to white space at the ends.

    Numbers are equal as decimals, so 1.0 is 1.

    >>> same_output("3 \\n1.50\\n\\n", "3\\n1.5"), same_output("3 1", "3\\n1")
    (True, False)
    """
    lines = [line.split() for line in said.strip().splitlines()]
    others = [line.split() for line in expected.strip().splitlines()]
    if [len(line) for line in lines] != [len(line) for line in others]:
        return False
    pairs = zip(itertools.chain(*lines), itertools.chain(*others), strict=True)
    return all(word == other or _equal_numbers(word, other) for word, other in pairs)


def _equal_numbers(word: str, other: str) -> bool:
    try:
        return Decimal(word) == Decimal(other)
    except InvalidOperation:
        return False


def _run_calls(box: Sandbox, code: str, tests: AssertTests | FunctionTests, stops: bool) -> Ended:
    """Run the tests in one program, which calls the solution in another."""
    secret = secrets.token_hex(16)
    task = {
        "secret": secret,
        "setup": tests.setup if isinstance(tests, AssertTests) else "",
        "entries": tests.entries if isinstance(tests, AssertTests) else (tests.entry,),
        "tests": tests.list if isinstance(tests, AssertTests) else tests.cases,
        "unwraps": isinstance(tests, FunctionTests) and tests.unwraps,
        "seconds": tests.seconds,
        "total_seconds": TOTAL_SECONDS,
        "stops": stops,
    }
    count = len(tests.list if isinstance(tests, AssertTests) else tests.cases)
    program = Program(
        code="import rpc\nrpc.judge()",
        files=_module(),
        stdin=json.dumps(task, default=msgspec.structs.asdict),  # msgspec has no integers beyond 64 bits
        seconds=min(count * tests.seconds, TOTAL_SECONDS) + START_SECONDS,
        memory_mb=tests.memory_mb,
    )
    files = {**_module(), rpc.SOLUTION: code.encode("utf-8", "replace")}
    peer = msgspec.structs.replace(program, code="import rpc\nrpc.solve()", stdin="", files=files)
    result = box.run(program, peer)
    _, found, verdict = result.stdout.rpartition(f"\n{secret} ")
    if not found:  # the tests themselves do not end, or take all memory
        return 0.0, result.outcome if result.outcome in ("time", "memory") else "wrong"
    said = json.loads(verdict)
    if "broken" in said:
        raise DataError(f"the tests do not run: {said['broken']}")
    return said["passed"] / count, said["verdict"]


@functools.cache
def _module() -> dict[str, bytes]:
    """Return rpc.py as files of a program: its source, and compiled, which an interpreter of this version takes."""
    source = Path(rpc.__file__).read_bytes()
    compiled = marshal.dumps(compile(source, "rpc.py", "exec"))
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)  # PEP 552: never compared with the source
    return {"rpc.py": source, f"__pycache__/rpc.{sys.implementation.cache_tag}.pyc": head + compiled}
