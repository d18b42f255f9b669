"""Published sets are read in their upstream formats; what is missing is named with the command that fetches it."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from arl.config.recipe import Data
from arl.data.problems import load_problems
from arl.errors import DataError
from arl.run.commands import tasks
from arl.tasks.math_sets import Gsm8k
from arl.types import Problem


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder of problem sets and an empty cache, and let no hub be asked."""
    monkeypatch.setenv("ARL_DATA", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def put(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows))


GSM8K_ROWS = [{"question": f"What is 1,000 + {i}?", "answer": f"It is more.\n#### 1,{i:03d}"} for i in range(3)]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_local_copy_comes_before_the_hub(folder: Path, suffix: str) -> None:
    put(folder, f"gsm8k/train.{suffix}", GSM8K_ROWS)
    put(folder, f"gsm8k/test.{suffix}", [{"question": "What is 7?", "answer": "#### 7"}])
    sets = load_problems(Data(task="gsm8k"), seed=0)
    assert [problem.answer for problem in sets.training] == ["1,000", "1,001", "1,002"]
    assert [problem.prompt for problem in sets.held_out] == ["What is 7?"]


def test_the_answer_of_math_is_in_the_last_box_of_its_solution(folder: Path) -> None:
    solution = r"First $\boxed{1}$, then $x = \boxed{\frac{1}{2}}$."
    put(
        folder,
        "math/train.jsonl",
        [{"problem": "Find x.", "solution": solution, "level": "Level 1", "type": "Algebra"}],
    )
    put(folder, "math500/test.jsonl", [{"problem": "Find y.", "solution": "…", "answer": "2", "subject": "Algebra"}])
    sets = load_problems(Data(task="math"), seed=0)
    assert sets.training == [Problem("Find x.", r"\frac{1}{2}", {"level": "Level 1", "type": "Algebra"})]
    assert sets.held_out[0].answer == "2"


def test_a_question_of_math_that_is_also_in_its_evaluation_is_left_out(folder: Path) -> None:
    rows = [{"problem": f"Find {name}.", "solution": r"\boxed{1}"} for name in "xyz"]
    put(folder, "math/train.jsonl", rows)
    put(folder, "math500/test.jsonl", [{"problem": "find $y$", "answer": "1"}])
    sets = load_problems(Data(task="math"), seed=0)
    assert [problem.prompt for problem in sets.training] == ["Find x.", "Find z."]
    assert "1 of 3 training problems also occur" in sets.notes[0]


def test_a_set_for_evaluation_alone_is_not_trained_on() -> None:
    with pytest.raises(DataError, match=r"data.task aime24: is for evaluation alone.*name aime24 in eval.suites"):
        load_problems(Data(task="aime24"), seed=0)


def test_an_absent_set_is_refused_with_the_command_that_fetches_it(folder: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_problems(Data(task="gsm8k"), seed=0)
    message = str(caught.value)
    assert "`hf download --repo-type dataset openai/gsm8k --include 'main/train-*.parquet'`" in message
    assert "or let ARL_DATA name a folder that holds gsm8k/train.jsonl" in message


def test_every_built_in_task_is_listed_with_its_problems_and_their_place(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(folder, "gsm8k/test.jsonl", GSM8K_ROWS)
    tasks()
    text = capsys.readouterr().out
    assert f"1,319  {folder}/gsm8k/test.jsonl  (MIT)" in text
    assert "7,473  missing: hf download --repo-type dataset openai/gsm8k --include 'main/train-*.parquet'" in text
    assert "generated" in text
    assert "none: for evaluation alone" in text


@pytest.mark.skipif("ARL_DATA" not in os.environ, reason="ARL_DATA names no folder of problem sets")
def test_gsm8k_has_the_problems_that_are_declared_and_its_sides_do_not_overlap() -> None:
    sets = load_problems(Data(task="gsm8k"), seed=0)
    assert len(sets.training) == Gsm8k.training[0].num_problems == 7473
    assert len(sets.held_out) == Gsm8k.evaluation_sources[0].num_problems == 1319
    assert not sets.notes
