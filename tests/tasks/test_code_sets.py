"""Published sets of code are read in their upstream formats, and graded by them."""

import base64
import json
import os
import pickle
import zlib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from arl.config.recipe import Data, Recipe
from arl.config.sandbox_section import SandboxSection
from arl.data.problems import load_problems
from arl.errors import DataError, SandboxError
from arl.reward.code import score
from arl.run.commands import tasks
from arl.run.evaluation.suite import load_suite
from arl.sandbox.current import configured
from arl.tasks.base import Split
from arl.tasks.registry import open_task
from arl.types import Problem, Response


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make an empty folder of problem sets, and let no hub be asked."""
    monkeypatch.setenv("ARL_DATA", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with configured(SandboxSection()):
        yield tmp_path


def packed(cases: list[dict[str, str]]) -> str:
    """Pack hidden tests as LiveCodeBench does."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def contest(day: str, **columns: Any) -> dict[str, Any]:
    public = [{"input": "2 3", "output": "5", "testtype": "stdin"}]
    return {
        "question_content": f"Add. {day}",
        "starter_code": "",
        "contest_date": f"{day}T00:00:00",
        "metadata": "{}",
        "public_test_cases": json.dumps(public),
        "private_test_cases": packed([{"input": "1 1", "output": "2", "testtype": "stdin"}]),
    } | columns


METHOD = contest(
    "2024-10-01",
    starter_code="class Solution:\n    def add(self, a: List[int], b: int) -> int:\n        ",
    metadata='{"func_name": "add"}',
    public_test_cases=json.dumps([{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}]),
    private_test_cases=json.dumps([{"input": "[]\n3", "output": "3", "testtype": "functional"}]),
)
TEXTS: dict[str, Any] = {"description": "Add.", "input_format": "a, b", "output_format": "a + b"}
TEXTS |= {"note": None, "examples": []}
PAIR = [{"input": "2 3", "output": "5"}]
STREAM = json.dumps({"inputs": ["2 3\n"], "outputs": ["5\n"]})
CALL = json.dumps({"fn_name": "add", "inputs": [[[1, 2], 3]], "outputs": [[6]]})
CASES = [{"type": "function_call", "fn_name": "add", "input": [[1, 2], 3], "output": [6]}]
NAMED: dict[str, Any] = {"input": [], "output": []}
CONTEST = {"public_tests": {"input": ["2 3"], "output": ["5"]}, "private_tests": NAMED, "generated_tests": NAMED}
CODEFORCES = {"official_tests": PAIR, "official_tests_complete": True, "input_mode": "stdio", "time_limit": 2.0}
FUNCTION = {"task_id": 11, "prompt": "Add.", "test_list": ["assert add([1, 2], 3) == 6"], "test_imports": []}
COMPLETION = {
    "prompt": "def add(a, b):\n    'Add.'\n",
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate([1, 2], 3) == 6\n",
}

PROGRAM = "a, b = map(int, input().split())\nprint(a + b)"
ADD = "def add(a, b): return sum(a) + b"
ROWS = [
    ("livecodebench/test", contest("2024-10-01"), PROGRAM),
    ("livecodebench/test", METHOD, "class Solution:\n    def add(self, a: List[int], b: int): return sum(a) + b"),
    ("deepcoder/codeforces/test", {"problem": "Add.", "tests": json.dumps(PAIR)}, PROGRAM),
    ("deepcoder/codeforces/test", {"problem": "Add.", "tests": STREAM}, PROGRAM),
    ("deepcoder/codeforces/test", {"problem": "Add.", "tests": json.dumps(CASES)}, ADD),
    ("codecontests/test", {"description": "Add.", **CONTEST, "time_limit": {"seconds": 2, "nanos": 0}}, PROGRAM),
    ("codeforces/test", {**TEXTS, **CODEFORCES}, PROGRAM),
    ("mbpp/sanitized-mbpp", FUNCTION, ADD),
    ("humaneval/HumanEval", COMPLETION, ADD),
]


def write(folder: Path, name: str, *rows: dict[str, Any], suffix: str = ".jsonl") -> None:
    path = folder / (name + suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(task: str, split: Split = "evaluation", **options: Any) -> list[Problem]:
    return list(open_task(Data(task=task, options=options)).problems(split, seed=0))


@pytest.mark.parametrize(("name", "row", "solution"), ROWS)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_row_as_it_is_published_becomes_a_problem_that_its_solution_solves(
    folder: Path, name: str, row: dict[str, Any], solution: str, suffix: str
) -> None:
    write(folder, name, row, suffix=suffix)
    task = name.partition("/")[0]
    options: dict[str, Any] = {"release": "v1"} if task == "livecodebench" else {}
    (problem,) = read(task, "evaluation", **options)
    assert "dd" in problem.prompt
    assert score(problem, Response(f"```python\n{solution}\n```"))["correct"] == 1
    spoiled = solution.replace("+ b", "- b - 1")
    assert score(problem, Response(f"```python\n{spoiled}\n```"))["wrong"] == 1


@pytest.mark.parametrize(("packed", "solution"), [(STREAM, PROGRAM), (CALL, ADD)])
def test_a_file_in_the_form_of_taco_or_apps_is_graded(folder: Path, packed: str, solution: str) -> None:
    write(folder, "mine", {"question": "Add.", "input_output": packed, "time_limit": "2.0 seconds"})
    sets = load_problems(
        Data.model_validate({"path": str(folder / "mine.jsonl"), "columns": {"prompt": "question"}}), seed=0
    )
    assert score(sets.training[0], Response(f"```python\n{solution}\n```"))["correct"] == 1


def test_a_pickle_that_is_more_than_one_text_is_refused_and_never_loaded(folder: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(folder / "exploded"),)

    hostile = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    write(folder, "livecodebench/test", contest("2024-10-01", private_test_cases=hostile))
    (problem,) = read("livecodebench", release="v1")
    with pytest.raises(DataError, match=r"its pickle holds .*, and may hold one text alone"):
        score(problem, Response(f"```python\n{PROGRAM}\n```"))
    assert not (folder / "exploded").exists()


def test_livecodebench_has_the_files_of_a_release_and_the_contests_of_a_window(folder: Path) -> None:
    write(folder, "livecodebench/test", contest("2023-05-07"), contest("2024-10-01"))
    write(folder, "livecodebench/test2", contest("2025-02-01"))
    assert len(read("livecodebench", release="v1")) == 2
    assert len(read("livecodebench", release="v2")) == 3
    assert len(read("livecodebench", release="v2", since=date(2024, 10, 1), until="2025-01-31")) == 1
    with pytest.raises(DataError, match=r"test3\.jsonl"):
        read("livecodebench", release="v3")


def test_mbpp_is_divided_by_the_ids_of_its_authors(folder: Path) -> None:
    rows = [FUNCTION | {"task_id": number, "prompt": f"Add {number}."} for number in (2, 11, 510, 550, 601, 974)]
    write(folder, "mbpp/sanitized-mbpp", *rows)
    sets = load_problems(Data(task="mbpp"), seed=0)
    assert [problem.prompt[:8] for problem in sets.training] == ["Add 601.", "Add 974."]
    assert [problem.prompt[:7] for problem in sets.held_out] == ["Add 11.", "Add 510"]


def test_a_row_without_usable_tests_is_named_or_left_out(folder: Path) -> None:
    broken = {"problem": "Add.", "tests": '{"inputs": ["1"], "outputs": []}'}
    write(folder, "deepcoder/codeforces/test", {"problem": "Add.", "tests": STREAM}, broken)
    with pytest.raises(DataError, match=r"test.jsonl:2: column tests .*data.options.malformed: skip"):
        read("deepcoder")
    assert len(read("deepcoder", malformed="skip")) == 1


def test_a_problem_whose_own_solution_fails_its_tests_is_named_or_left_out_where_that_is_asked(folder: Path) -> None:
    right = FUNCTION | {"code": ADD}
    wrong = FUNCTION | {"code": ADD.replace("sum", "len"), "prompt": "Add to the sum."}
    write(folder, "mbpp/sanitized-mbpp", right, wrong)
    assert len(read("mbpp")) == 2
    with pytest.raises(DataError, match=r"mbpp.jsonl:2: its own solution does not pass its tests \(wrong\); correct"):
        read("mbpp", check=True)
    task = open_task(Data(task="mbpp", options={"check": True, "malformed": "skip"}))
    assert len(task.problems("evaluation", seed=0)) == 1
    (note,) = task.notes
    assert note.startswith("1 rows of mbpp left out (data.options.malformed): ")


def test_solutions_are_checked_in_the_sandbox_of_the_recipe(folder: Path) -> None:
    write(folder, "mbpp/sanitized-mbpp", FUNCTION | {"code": ADD})
    data = {"task": "mbpp", "options": {"check": True}}
    sandbox = {"kind": "fusion", "url": "http://127.0.0.1:9"}
    recipe = Recipe.model_validate({"model": {"path": "m"}, "data": data, "sandbox": sandbox})
    with pytest.raises(SandboxError, match=r"127\.0\.0\.1:9"):
        load_suite(recipe, "mbpp")


def test_a_set_for_evaluation_alone_says_so_and_every_set_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"humaneval: is for evaluation alone.*Train on deepcoder or mbpp"):
        read("humaneval", "training")
    tasks()
    text = capsys.readouterr().out
    assert "23,688  missing: hf download --repo-type dataset agentica-org/DeepCoder-Preview-Dataset" in text
    assert "1,055  missing: hf download --repo-type dataset livecodebench/code_generation_lite" in text
