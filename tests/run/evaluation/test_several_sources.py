"""Sources keep apart what each trains on and holds out, and suites sample as their tasks say."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from arl.config.recipe import Recipe
from arl.data.model_limits import Limits
from arl.data.problems import ProblemSets
from arl.data.tokenizer import HuggingFaceCodec
from arl.errors import DataError
from arl.run.evaluation.suite import held_out_suites, load_suite, run_problems
from arl.run.starting_model import starting_codecs
from arl.tasks.short_sums import ShortSums
from arl.types import Problem
from tests.data.chat_tokenizers import chat_tokenizer


class Sampled(ShortSums):
    evaluation: ClassVar[Mapping[str, Any]] = {"samples": 4}


FILES = {"a": ["one", "two", "three"], "a-test": ["four"], "b": ["five", "six"], "b-test": ["seven", "eight"]}


def problems(directory: Path, files: dict[str, list[str]], **of_b: str) -> tuple[Recipe, ProblemSets]:
    """Load two sources, `a` with a suffix and `b`, from files with these questions."""
    for name, questions in files.items():
        rows = [json.dumps({"prompt": question, "answer": "1"}) for question in questions]
        (directory / f"{name}.jsonl").write_text("\n".join(rows))
    data = [{"path": str(directory / f"{s}.jsonl"), "eval_path": str(directory / f"{s}-test.jsonl")} for s in "ab"]
    data[0]["suffix"] = " Think."
    data[1] |= of_b
    values = {"model": {"path": "m"}, "data": data, "reward": {"function": "tests.reward.hostile:obey"}}
    recipe = Recipe.model_validate(values | {"rollout": {"max_new_tokens": 8}})
    codec = HuggingFaceCodec(chat_tokenizer(None))
    codecs = {name: codec.with_format(source.data) for name, source in recipe.sources.items()}
    return recipe, run_problems(recipe, {}, codecs, Limits(codec.vocab_size, context=64))


def test_each_source_trains_and_holds_out_its_own_problems(tmp_path: Path) -> None:
    recipe, sets = problems(tmp_path, FILES)
    trained = [(problem.source, problem.prompt) for problem in sets.training]
    assert trained == [("a", "one"), ("a", "two"), ("a", "three"), ("b", "five"), ("b", "six")]
    suites = held_out_suites(recipe, sets.held_out)
    assert [(suite.name, len(suite.problems)) for suite in suites] == [("held_out/a", 1), ("held_out/b", 2)]
    assert sets.longest == 1 + len("three Think.") + 8  # <bos>, the prompt, the answer


def test_what_another_source_holds_out_is_refused_or_left_out_and_never_trained(tmp_path: Path) -> None:
    files = FILES | {"b": ["Four", "five"]}
    with pytest.raises(DataError, match=r"source b: data\.overlap refuse: 1 of 2 training problems also occur in the"):
        problems(tmp_path, files)
    _, sets = problems(tmp_path, files, overlap="drop")
    assert [problem.prompt for problem in sets.training if problem.source == "b"] == ["five"]


def test_a_suite_of_a_mixture_is_sampled_as_its_task_says_unless_the_recipe_says_otherwise() -> None:
    name = f"{__name__}:Sampled"
    values = {"model": {"tiny": {}}, "data": [{"task": name}, {"task": "long_tail"}]}
    assert load_suite(Recipe.model_validate(values), name).recipe.eval.samples == 4
    assert load_suite(Recipe.model_validate(values | {"eval": {"samples": 2}}), name).recipe.eval.samples == 2


def test_a_suite_of_another_task_has_none_of_the_recipes_tools() -> None:
    values = {"model": {"tiny": {}}, "data": {"task": "tool_sums"}, "rollout": {"tools": ["python"], "max_turns": 3}}
    suite = load_suite(Recipe.model_validate(values), "short_sums")
    assert suite.recipe.rollout.tools == ()


def test_a_template_that_no_prompt_uses_need_not_be_usable(tmp_path: Path) -> None:
    chat_tokenizer("{{ messages[0].content }}").save_pretrained(tmp_path)  # the user's turn has no end
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "one"}')
    values = {"model": {"path": str(tmp_path)}, "data": {"path": str(rows), "chat_template": False}}
    (codec,) = starting_codecs(Recipe.model_validate(values)).values()
    assert codec.decode(codec.encode_problem(Problem("one"))) == "one"
    with pytest.raises(DataError, match=r"set data\.chat_template to false"):
        starting_codecs(Recipe.model_validate(values | {"data": {"path": str(rows)}}))
