"""Check the grader on every problem of HumanEval and MBPP: its own solution is right, and spoiled ones are not."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from arl.reward.code import score
from arl.sandbox.current import close_sandbox, configure
from arl.types import Problem, Response

pytestmark = pytest.mark.slow


def rows(file: str) -> list[dict[str, Any]]:
    """Return the rows of a set, or skip the test where there is none."""
    root = os.environ.get("ARL_DATA")
    if root is None:
        pytest.skip(f"ARL_DATA names no directory with problem sets, so {file} is not checked")
    path = Path(root) / file
    if not path.exists():
        pytest.skip(f"{path} is absent")
    text = path.read_text()
    return json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


def right(row: dict[str, Any], code: str) -> bool:
    return score(Problem(row["prompt"], metadata=row), Response(f"```python\n{code}\n```"))["correct"] == 1


def returning_nothing(code: str) -> str:
    return re.sub(r"^(\s+)return\b.*", r"\1return None", code, flags=re.M)


def truncated(code: str) -> str:
    return code[: len(code) // 2]


def solution(row: dict[str, Any]) -> str:
    return str(row["code"] if "code" in row else row["prompt"] + row["canonical_solution"])


SETS = [("humaneval/HumanEval.jsonl", 164, 164), ("mbpp/sanitized-mbpp.json", 427, 426)]


@pytest.mark.parametrize(("file", "problems", "least"), SETS)
def test_the_solutions_of_a_set_are_right(file: str, problems: int, least: int) -> None:
    configure({})
    found = rows(file)
    failed = [row["task_id"] for row in found if not right(row, solution(row))]
    close_sandbox()
    assert len(found) == problems
    assert problems - len(failed) >= least, failed


@pytest.mark.parametrize(("file", "problems", "least"), SETS)
def test_spoiled_solutions_of_a_set_are_wrong(file: str, problems: int, least: int) -> None:
    configure({})
    found = rows(file)[::8]
    wrong = 0
    for row in found:
        wrong += not right(row, returning_nothing(solution(row)))
        wrong += not right(row, truncated(solution(row)))
        wrong += not right(row, solution(found[0])) or row is found[0]
    close_sandbox()
    assert wrong >= 3 * len(found) - 3  # half of a solution may be one, and some tests ask for None
