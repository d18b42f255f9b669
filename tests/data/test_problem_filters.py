"""Training problems are left out for a stated reason, and are counted; overlap with an evaluation is refused."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from arl.config.recipe import Data
from arl.data.problems import ProblemSets, as_candidates, filtered, read_sides
from arl.errors import DataError
from arl.types import Problem

HARD = {"hard": [Problem(f"hard question {i}") for i in range(30)]}


def write(path: Path, prompts: list[str]) -> str:
    path.write_text("\n".join(json.dumps({"prompt": prompt, "answer": "1"}) for prompt in prompts))
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Write ten training questions and three of an evaluation."""
    return {
        "path": write(tmp_path / "train.jsonl", [f"question {i}" for i in range(10)]),
        "eval_path": write(tmp_path / "test.jsonl", [f"test {i}" for i in range(3)]),
    }


def load(files: dict[str, str], suites: Mapping[str, list[Problem]] = {}, **data: Any) -> ProblemSets:
    section = Data.model_validate({**files, **data})
    evaluations = {f"the suite {name}": as_candidates(problems, name) for name, problems in suites.items()}
    return filtered(section, read_sides(section, 0), evaluations)


def prompts(sets: ProblemSets) -> list[str]:
    return [str(problem.prompt) for problem in sets.training]


def test_an_equal_question_is_trained_once(files: dict[str, str], tmp_path: Path) -> None:
    files["path"] = write(tmp_path / "train.jsonl", ["What is it?", "Other", "what is  it", "WHAT IS IT."])
    sets = load(files)
    assert prompts(sets) == ["What is it?", "Other"]
    assert sets.notes == (f'2 repeated questions left out (data.deduplicate), as {files["path"]}:3 "what is it"',)
    kept = load(files, deduplicate=False)
    assert len(kept.training) == 4


@pytest.mark.parametrize(("field", "name"), [("eval_path", "the problems of the evaluation"), ("suite", "the suite")])
def test_training_problems_of_an_evaluation_are_refused_with_their_number_and_an_example(
    files: dict[str, str], tmp_path: Path, field: str, name: str
) -> None:
    shared = ["Hard question 7", "hard  question 9."] if field == "suite" else ["TEST 1", "test 2?"]
    files["path"] = write(tmp_path / "train.jsonl", ["question", *shared])
    suites = HARD if field == "suite" else {}
    with pytest.raises(DataError) as caught:
        load(files, suites)
    message = str(caught.value)
    assert message.startswith(f"data.overlap refuse: 2 of 3 training problems also occur in {name}")
    assert f'{files["path"]}:2 "{shared[0]}"' in message
    assert "data.overlap: drop" in message


def test_training_problems_of_an_evaluation_can_be_left_out_and_are_counted(
    files: dict[str, str], tmp_path: Path
) -> None:
    files["path"] = write(tmp_path / "train.jsonl", ["test 1", "question", "hard question 3"])
    sets = load(files, HARD, overlap="drop")
    assert prompts(sets) == ["question"]
    assert len(sets.notes) == 2
    assert all("1 of 3 training problems also occur in" in note for note in sets.notes)


def results(path: Path, correct: Mapping[str, Sequence[float]]) -> str:
    rows = [
        {"problem_id": Problem(prompt, "1").id, "sample": i, "correct": value}
        for prompt, values in correct.items()
        for i, value in enumerate(values)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_problems_stay_whose_measured_pass_rate_is_in_the_range(files: dict[str, str], tmp_path: Path) -> None:
    measured = {"question 1": [0, 0, 0, 0], "question 2": [0, 1, 0, 1], "question 3": [1, 1, 1, 1]}
    file = results(tmp_path / "suite.jsonl", measured)
    sets = load(files, pass_rate={"file": file, "min": 0.1, "max": 0.9})
    assert prompts(sets) == ["question 2"]
    assert sets.notes == (f"2 problems with a pass rate outside 0.1 … 0.9 left out, and 7 that {file} did not measure",)
