"""The section `data` says where problems come from, and refuses what has no meaning together."""

from pathlib import Path

import pytest

from arl.config.recipe import Data
from arl.config.recipe_file import load_recipe
from arl.errors import RecipeError
from arl.tasks.math_sets import SUFFIX

OF_FILES = """\
model: {path: some/model}
reward: {function: my:score}
data:
  path: train.jsonl
  eval_path: test.jsonl
  columns: {prompt: question}
  template: "{question}"
  malformed: skip
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(OF_FILES)
    return path


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (
            "{path: a.jsonl, eval_path: b.jsonl, eval_fraction: 0.2}",
            "data.eval_fraction 0.2: data.eval_path b.jsonl holds",
        ),
        ("{task: gsm8k, eval_path: b.jsonl}", "data.eval_path b.jsonl: only with data.path"),
        ("{task: gsm8k, path: a.jsonl}", "give exactly one of data.task and data.path"),
        ("{}", "give exactly one of data.task and data.path"),
        ("{path: a.jsonl, columns: {promt: x}}", "data.columns.promt: unknown key; did you mean prompt?"),
        (
            "{path: a.jsonl, template: '{}'}",
            "data.template '{}': a field is the name of a column alone, like {question}; write {{ and }}",
        ),
        ("{path: a.jsonl, pass_rate: {min: 0.5}}", "data.pass_rate.file: required, and missing"),
    ],
)
def test_what_has_no_meaning_together_is_refused_with_file_and_line(file: Path, data: str, complaint: str) -> None:
    file.write_text(f"model: {{path: some/model}}\nreward: {{function: my:score}}\ndata: {data}\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe(file)
    assert str(caught.value).startswith(f"{file}:3: ")
    assert complaint in str(caught.value)


def test_a_share_is_held_out_where_no_file_of_an_evaluation_is_named() -> None:
    assert Data(path="a.jsonl").eval_fraction == 0.1
    assert Data(path="a.jsonl", eval_path="b.jsonl").eval_fraction is None
    assert Data(task="gsm8k").eval_fraction is None


def test_files_are_used_without_repeats_and_a_task_that_draws_problems_as_it_drew_them() -> None:
    assert Data(path="a.jsonl").deduplicate is True
    assert Data(path="a.jsonl", deduplicate=False).deduplicate is False
    assert Data(task="gsm8k").deduplicate is True
    assert Data(task="running_checksum").deduplicate is False


def test_an_override_of_the_task_drops_what_described_the_files(file: Path) -> None:
    data = load_recipe(file, ["data.task=gsm8k"]).data
    assert (data.task, data.path, data.eval_path, data.template, data.suffix) == ("gsm8k", None, None, None, SUFFIX)
