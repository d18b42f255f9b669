"""Problems keep their side of the split and their order."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Data
from arl.data.problems import ProblemOrder, load_problems
from arl.errors import DataError
from arl.tasks.base import is_held_out
from arl.tasks.running_checksum import RunningChecksum, demonstrate, draw_problem
from arl.types import Problem, Response


def test_no_content_is_on_both_sides_whatever_the_seed() -> None:
    sides = [load_problems(Data(task="running_checksum", options={"size": 4000}), seed) for seed in (0, 1)]
    training = {p.prompt for t, _ in sides for p in t}
    held_out = {p.prompt for _, h in sides for p in h}
    assert not training & held_out
    assert 0.07 < len(held_out) / (len(training) + len(held_out)) < 0.13


def test_an_epoch_hands_out_every_problem_once_and_the_next_one_in_another_order() -> None:
    problems = [Problem(str(i)) for i in range(40)]
    order = ProblemOrder(problems, seed=3)
    first = [next(order).prompt for _ in problems]
    second = [next(order).prompt for _ in problems]
    assert sorted(first) == sorted(second) == sorted(str(p.prompt) for p in problems)
    assert first != second


@given(st.integers(0, 10_000))
def test_a_worked_demonstration_is_rewarded_and_a_slip_may_not_be(seed: int) -> None:
    rng = random.Random(seed)
    problem = draw_problem(rng, uniform_lengths=True)
    worked = demonstrate(problem, rng)
    assert RunningChecksum.reward(problem, Response(worked)) == 1.0
    assert RunningChecksum.reward(problem, Response(worked, truncated=True)) == 0.0
    assert RunningChecksum.reward(problem, Response(f"{worked}#{problem.answer}")) == 0.0
    assert len(worked.partition("#")[0]) == len(str(problem.prompt).rstrip(".="))


def test_jsonl_problems_keep_their_extra_fields(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{i}?", "answer": i, "level": 2}) for i in range(50)))
    training, held_out = load_problems(Data(path=str(path)), seed=0)
    assert len(training) + len(held_out) == 50
    assert training[0].metadata == {"level": 2}
    assert training[0].answer == str(training[0].prompt).removesuffix("?")


def test_a_line_separator_inside_a_string_ends_no_line(tmp_path: Path) -> None:
    """JSON allows U+2028 and U+0085 in strings, and many data sets have them."""
    path = tmp_path / "p.jsonl"
    rows = [{"prompt": f"{i}\u2028\u0085?", "answer": str(i)} for i in range(9)]
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    training, held_out = load_problems(Data(path=str(path)), seed=0)
    assert {p.prompt for p in training + held_out} == {row["prompt"] for row in rows}


@pytest.mark.parametrize("row", [{"prompt": "x"}, {"prompt": "x", "answer": None}])
def test_a_problem_without_an_answer_has_an_empty_one(tmp_path: Path, row: dict[str, str | None]) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps(row))
    training, held_out = load_problems(Data(path=str(path), eval_fraction=0.001), seed=0)
    assert [p.answer for p in training + held_out] == [""]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "leave none to train on"),
        ('{"prompt": "x"}\nnonsense', "p.jsonl:2: not JSON"),
        ('{"question": "x"}', "p.jsonl:1: needs a non-empty `prompt`"),
        ('{"prompt": ""}', "p.jsonl:1: needs a non-empty `prompt`"),
    ],
)
def test_a_bad_problem_file_is_refused_by_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(DataError, match=complaint):
        load_problems(Data(path=str(tmp_path / "p.jsonl")), seed=0)


def test_a_missing_problem_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent\.jsonl: cannot be read"):
        load_problems(Data(path=str(tmp_path / "absent.jsonl")), seed=0)


def test_the_split_is_decided_by_content_alone() -> None:
    assert is_held_out(Problem("x", "1"), 0.999)
    assert is_held_out(Problem("x", "1"), 0.5) == is_held_out(Problem("x", "1", {"extra": 1}), 0.5)
