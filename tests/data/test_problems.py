"""Problems keep their side of the split and their order, and bad files are refused by line."""

from pathlib import Path

import pytest

from arl.config.recipe import Data
from arl.data.problem_order import ProblemOrder
from arl.data.problems import load_problems
from arl.errors import DataError
from arl.types import Problem


def test_no_content_is_on_both_sides_whatever_the_seed() -> None:
    sides = [load_problems(Data(task="running_checksum", options={"size": 4000}), seed) for seed in (0, 1)]
    training = {p.prompt for side in sides for p in side.training}
    held_out = {p.prompt for side in sides for p in side.held_out}
    assert not training & held_out
    assert 0.07 < len(held_out) / (len(training) + len(held_out)) < 0.13


def test_an_epoch_hands_out_every_problem_once_and_the_next_one_in_another_order() -> None:
    problems = [Problem(str(i)) for i in range(40)]
    order = ProblemOrder(problems, seed=3)
    first = [next(order).prompt for _ in problems]
    second = [next(order).prompt for _ in problems]
    assert sorted(first) == sorted(second) == sorted(str(p.prompt) for p in problems)
    assert first != second


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "p.jsonl: is empty"),
        ('{"prompt": "x"}\nnonsense', "p.jsonl:2: not JSON"),
        ('{"prompt": "x", "n": 18446744073709551616}', "p.jsonl:1: has an integer that takes more than 64 bits"),
        ('{"prompt": "x", "n": NaN}', "p.jsonl:1: not JSON .*, which has no NaN and no Infinity: write null"),
        ('{"prompt": true}', "p.jsonl:1: column prompt is True, and must be text"),
        ('{"promt": "x"}', "p.jsonl:1: no column prompt, which data.columns.prompt names .did you mean promt"),
    ],
)
def test_a_bad_problem_file_is_refused_by_line_and_column(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(DataError, match=complaint):
        load_problems(Data(path=str(tmp_path / "p.jsonl")), seed=0)


def test_malformed_rows_can_be_left_out_and_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "x"}\nnonsense\n{"prompt": 3}\n{"prompt": "y", "answer": null}')
    sets = load_problems(Data(path=str(path), malformed="skip", eval_fraction=0.001), seed=0)
    assert sets.training == [Problem("x"), Problem("y")]
    (note,) = sets.notes
    assert note.startswith(f"2 of 4 rows of data.path are malformed and left out: {path}:2: not JSON")
