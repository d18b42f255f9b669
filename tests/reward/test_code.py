"""A program is graded by its tests, and a solution can neither forge their verdict nor see them."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from arl.config.recipe_file import load_recipe
from arl.errors import DataError
from arl.reward.code import score, score_each
from arl.reward.code.judge import VERDICTS, find_code, same_output
from arl.run.rewards import reward_weights
from arl.sandbox.current import close_sandbox, configure
from arl.types import Problem, Response
from tests.forks import ROOT

DOUBLE = {"test_list": ["assert double(2) == 4", "assert double(3) == 6", "assert double('a') == 'aa'"]}


@pytest.fixture(autouse=True, scope="module")
def sandbox() -> Iterator[None]:
    configure({})
    yield
    close_sandbox()


def verdict(code: str, tests: dict[str, Any], function: Any = score) -> tuple[str, float]:
    """Return the verdict, or "correct", and the share of tests that passed."""
    parts = function(Problem("?", metadata=tests), Response(f"```python\n{code}\n```"))
    (named,) = [name for name in ("correct", *VERDICTS) if parts[name]]
    return named, round(parts["passed"], 2)


def calls(entry: str, *pairs: tuple[list[Any], Any], **settings: Any) -> dict[str, Any]:
    cases = [{"input": arguments, "output": expected} for arguments, expected in pairs]
    return {"tests": {"kind": "calls", "entry": entry, "cases": cases, **settings}}


def streams(*pairs: tuple[str, str], **settings: Any) -> dict[str, Any]:
    return {"tests": {"kind": "stdin", "cases": [{"input": a, "output": b} for a, b in pairs], **settings}}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def double(x): return x + x", ("correct", 1.0)),
        ("def double(x): return 4 if x == 2 else None", ("wrong", 0.33)),
        ("def double(x): return None", ("wrong", 0.0)),
        ("def double(x): return x.y", ("runtime", 0.0)),
        ("def double(x", ("runtime", 0.0)),
        ("def triple(x): return x", ("runtime", 0.0)),
        ("def double(x): return [0] * 10**10", ("memory", 0.0)),
    ],
)
def test_asserts_end_with_the_verdict_of_the_first_that_fails(code: str, expected: tuple[str, float]) -> None:
    assert verdict(code, DOUBLE) == expected


def test_every_test_runs_where_a_share_is_worth_something() -> None:
    assert verdict("def double(x): return 0 if x == 2 else x + x", DOUBLE, score_each) == ("wrong", 0.67)


FORGERIES = {
    "an object that equals all": "class A:\n def __eq__(self, o): return True\n __ne__ = __lt__ = __gt__ = __eq__\n"
    " def __bool__(self): return True\ndef double(x): return A()",
    "text that equals all": "class A(str):\n def __eq__(self, o): return True\n __hash__ = str.__hash__\n"
    "def double(x): return A('forged')",
    "the end of the process": "import os\ndef double(x): os._exit(0)",
    "the end of the process at the import": "import os\nos._exit(0)",
    "SystemExit": "import sys\ndef double(x): sys.exit(0)",
    "SystemExit at the import": "raise SystemExit(0)",
    "AssertionError for all": "import builtins\nbuiltins.AssertionError = ValueError\nAssertionError = int\n"
    "def double(x): raise AssertionError",
    "patched built-ins": "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.len = lambda x: 4\n"
    "def double(x): return 5",
    "frames of the caller": "import sys\ndef double(x):\n f = sys._getframe()\n while f:\n"
    "  f.f_globals['passed'] = 3\n  f.f_locals.update(reply=['value', 4])\n  f = f.f_back\n return 5",
    "a verdict on its output": 'print(\'\\n{"passed": 3, "verdict": ""}\', flush=True)\ndef double(x): return 5',
    "a reply of its own": "import os, json, struct\ndef double(x):\n for _ in range(9):\n"
    "  b = json.dumps(['passed', 3]).encode()\n"
    "  os.write(int(os.environ['ARL_PEER_WRITE']), struct.pack('>I', len(b)) + b)\n return 5",
    "a reply that never ends": "import os\ndef double(x):\n"
    " os.write(int(os.environ['ARL_PEER_WRITE']), b'\\x7f\\xff\\xff\\xff' + b'[' * 60000)\n return 5",
    "a deep reply": "def double(x):\n a = []\n for _ in range(900): a = [a]\n return a",
    "a huge reply": "def double(x): return 'x' * (9 << 20)",
    "a value for the tests to search": "import gc\ndef double(x):\n"
    " found = [o for o in gc.get_objects() if isinstance(o, str) and 'assert' in o]\n return found or 5",
    "the names of the tests": "import sys\ndef double(x):\n"
    " sys.modules['__main__'].Judge.run = lambda *a: {'passed': 3, 'verdict': ''}\n return 5",
}


@pytest.mark.parametrize("code", FORGERIES.values(), ids=FORGERIES)
def test_a_solution_cannot_forge_a_verdict(code: str) -> None:
    named, passed = verdict(code, DOUBLE)
    assert (named in ("wrong", "runtime"), passed) == (True, 0.0)


def test_a_solution_that_hangs_takes_the_time_of_one_test() -> None:
    tests = {"tests": {"kind": "asserts", "list": DOUBLE["test_list"], "seconds": 0.5}}
    assert verdict("def double(x):\n while x: pass", tests, score_each) == ("time", 0.0)
    assert verdict("while True: pass", tests) == ("time", 0.0)
    endless = "import itertools\ndef double(x): return itertools.count()"
    listing = {"tests": {"kind": "asserts", "list": ["assert sum(double(1)) == 4"], "seconds": 0.5}}
    assert verdict(endless, listing) == ("time", 0.0)


def test_values_of_every_plain_type_and_objects_of_a_solution_cross_between_the_programs() -> None:
    values = "[None, True, float('inf'), 'ä', 2**200, -(2**70), (1, (2,)), {3, frozenset({4})}, {(1, 2): [b'x']}, 1j]"
    same = f"assert (v := same({values})) == {values} and [*map(type, v)] == [*map(type, {values})]"
    objects = [
        "assert list(count(3)) == [0, 1, 2] and next(count(3)) == 0",
        "assert Pair(1, 2).total() == 3 and first(Pair(5, 6)) == 5",
        "assert match('ab') and not match('b') and queue(count(2)).pop() == 1",
        "assert dict(Counted('aab')) == {'a': 2, 'b': 1} and Counted('aab') == {'a': 2, 'b': 1}",
    ]
    code = """
import collections, re
def same(x): return x
def count(n): yield from range(n)
class Pair:
    def __init__(self, a, b): self.a, self.b = a, b
    def total(self): return self.a + self.b
def first(pair): return pair.a
def match(text): return re.match('a', text)
Counted = collections.Counter
"""
    assert verdict(
        code, {"test_list": [same, *objects], "test_imports": ["from collections import deque as queue"]}, score_each
    ) == ("correct", 1.0)


def test_an_exception_of_the_solution_can_be_expected_by_its_type() -> None:
    expects = "try: half(1)\nexcept ValueError: pass\nelse: raise AssertionError"
    assert verdict("def half(x): raise ValueError('odd')", {"test_list": [expects]}) == ("correct", 1.0)
    assert verdict("def half(x): raise OSError", {"test_list": [expects]}) == ("runtime", 0.0)


def test_calls_compare_what_a_function_or_a_method_of_solution_returns() -> None:
    tests = calls("pair", ([1, 2], [1, 2]), ([[3], None], [[3], None]))
    assert verdict("class Solution:\n def pair(self, a, b): return (a, b)", tests) == ("correct", 1.0)
    assert verdict("def pair(a, b): return [b, a]", tests) == ("wrong", 0.0)


def test_huge_inputs_and_integers_reach_the_solution_and_odd_text_harms_only_itself() -> None:
    tests = calls("total", ([list(range(300_000)), 2**200], 2**200 + 44_999_850_000))
    assert verdict("def total(xs, n): return sum(xs) + n", tests) == ("correct", 1.0)
    assert verdict("print(len(input()))", streams(("x" * (6 << 20), str(6 << 20)))) == ("correct", 1.0)
    assert verdict("x = '\0'", streams(("", ""))) == ("runtime", 0.0)
    assert verdict("x = '\0'", DOUBLE) == ("runtime", 0.0)
    assert verdict("def double(x): return b'\\xff'.decode()", DOUBLE) == ("runtime", 0.0)


ADD = "a, b = map(int, input().split())\nprint(a + b)"


def test_programs_are_compared_by_their_output_and_stop_at_the_first_failure() -> None:
    tests = streams(("1 2\n", "3\n"), ("2 2", "4"), ("5 5", "10"))
    assert verdict(ADD, tests) == ("correct", 1.0)
    wrong_once = f"{ADD.replace('print', 'c =')}\nprint(0 if c == 4 else c)"
    assert verdict(wrong_once, tests) == ("wrong", 0.33)
    assert verdict(wrong_once, tests, score_each) == ("wrong", 0.67)
    assert verdict("print(1 / 0)", tests) == ("runtime", 0.0)
    assert verdict("while True: pass", streams(("", ""), seconds=0.5)) == ("time", 0.0)
    assert verdict("x = [0] * 10**10", tests) == ("memory", 0.0)


def test_a_checker_of_the_set_accepts_other_answers_and_runs_apart_from_the_solution() -> None:
    checker = (
        "import sys\n_, given, right, said = [open(name).read() for name in (sys.argv[1], *sys.argv[1:])]\n"
        "print(float(sum(map(int, said.split())) == int(given)))"
    )
    tests = streams(("7", "3 4"), checker=checker)
    assert verdict("print(2, 5)", tests) == ("correct", 1.0)
    assert verdict("print(2, 6)", tests) == ("wrong", 0.0)
    assert verdict("print('a')", tests) == ("wrong", 0.0)
    with pytest.raises(DataError, match="the checker printed '', and must print a number"):
        verdict("print(2, 6)", streams(("7", "3 4"), checker="pass"))


def test_outputs_are_equal_word_by_word_and_numbers_as_decimals() -> None:
    assert same_output("1.0  2\r\n3\n\n", "1 2\n3")
    assert not same_output("1 2 3", "1 2\n3")
    assert not same_output("0.3333333", "0.333333")
    assert not same_output("sNaN", "1")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\n```\nor\n```python\nx = 2\n```\n```\noutput\n```", "x = 2\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```python\nx = 1\n```</think>\n```py\nx = 2\n```", "x = 2\n"),
        ("<think>```python\nx = 1\n```", None),
        ("x = 1", None),
        ("```python\nx = 1", "x = 1"),
        ("", None),
    ],
)
def test_the_code_of_a_response_is_its_last_block_of_python(text: str, code: str | None) -> None:
    assert find_code(text) == code


def test_a_response_may_leave_out_the_imports_and_helpers_of_the_head_of_its_function() -> None:
    head = "import math\n\ndef helper(x):\n    return x\n\ndef area(r):\n    '''Return the area.'''\n"
    tests = {"entry_point": "area", "test": "def check(f):\n    assert abs(f(1) - 3.14159) < 1e-4"}
    text = "```python\ndef area(r):\n    return math.pi * helper(r) * r\n```"
    assert score(Problem(head, metadata=tests), Response(text))["correct"] == 1


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ({"text": "?"}, "no tests: a problem of code needs one of the columns tests, private_test_cases"),
        ({"tests": {"kind": "regex"}}, r"column tests holds no tests of a form that is known \(Invalid value 'regex'"),
        ({"test_list": ["assert f(1) ="]}, "column test_list .*invalid syntax"),
        ({"test_list": ["assert 1 == 1"]}, "the tests call no function of a solution"),
        ({"tests": {"kind": "stdin", "cases": []}}, "there is no test"),
        ({"tests": {"kind": "calls", "entry": "f", "cases": [{"input": 1, "output": 2}]}}, "the list of its arguments"),
        ({"test_list": ["assert f(lambda: 1)"]}, "the tests do not run: Unsupported: tests pass function"),
        ({"test_list": ["assert f(1)"], "test_imports": ["import nothing"]}, "do not run: ModuleNotFoundError"),
    ],
)
def test_tests_that_cannot_be_used_are_an_error_and_no_verdict(tests: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        verdict("def f(x): return x", tests)


def test_the_reward_is_whether_all_tests_pass_or_the_share_that_does_unless_the_recipe_says_otherwise() -> None:
    def weights(*settings: str) -> Mapping[str, float]:
        return reward_weights(load_recipe(ROOT / "recipes/quickstart.yaml", list(settings)))

    share = "reward.function=arl.reward.code:score_each"
    assert set(weights("reward.function=arl.reward.code:score").items()) == {("passed", 0), *((v, 0) for v in VERDICTS)}
    assert (weights(share)["passed"], weights(share)["correct"], weights(share)["time"]) == (1, 0, 0)
    penalized = weights(share, "reward.weights.no_code=-1")
    assert (penalized["passed"], penalized["no_code"]) == (1, -1)
