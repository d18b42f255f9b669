"""What a recipe says about problems is checked and shown before anything starts."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from tests.data.chat_tokenizers import TURNS, chat_tokenizer
from tests.forks import ROOT, arl

QUICKSTART = str(ROOT / "recipes/quickstart.yaml")


def make_model(directory: Path, template: str | None, context: int = 128) -> str:
    """Write a model of a few parameters whose tokenizer has this chat template."""
    tokenizer = chat_tokenizer(template)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=context,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


def dry_run(directory: Path, data: str, *overrides: str, model: str = "") -> CompletedProcess[str]:
    recipe = directory / "recipe.yaml"
    recipe.write_text(
        f"name: checked\nmodel: {{path: {model or make_model(directory / 'model', TURNS)}}}\ndata: {data}\n"
        "reward: {function: 'arl.reward.math.grader:score'}\nrollout: {max_new_tokens: 32}\n"
        "train: {minibatches: 1}\n"
    )
    sets = [word for override in overrides for word in ("--set", override)]
    return arl("train", str(recipe), "--dry-run", *sets, cwd=directory)


@pytest.fixture
def files(tmp_path: Path) -> str:
    """Write ten problems and three for the evaluation, and return the section `data` that names them."""
    for name, count in (("train", 10), ("test", 3)):
        lines = [json.dumps({"question": f"{name} {i}?", "answer": str(i)}) for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return "{path: train.jsonl, eval_path: test.jsonl, columns: {prompt: question}}"


def test_the_plan_says_how_problems_become_prompts(tmp_path: Path, files: str) -> None:
    done = dry_run(tmp_path, files, "data.system=Be brief.", "data.suffix=' Box it.'")
    assert done.returncode == 0, done.stderr
    assert "problems    train.jsonl: 10 for training, 3 held out for evaluation" in done.stdout
    assert "prompts     chat template of the model" in done.stdout
    assert "system prompt 'Be brief.'; suffix ' Box it.'; one begins '<|start|>system\\nBe brief.<|end|>" in done.stdout


def test_the_plan_says_what_was_left_out(tmp_path: Path, files: str) -> None:
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write('\nnonsense\n{"question": "TRAIN 3"}\n{"question": "Test 1."}\n')
    done = dry_run(tmp_path, files, "data.malformed=skip", "data.overlap=drop", "data.chat_template=false")
    assert done.returncode == 0, done.stderr
    assert "left out    1 of 13 rows of data.path are malformed and left out: train.jsonl:11: not JSON" in done.stdout
    assert 'left out    1 repeated questions left out (data.deduplicate), as train.jsonl:12 "TRAIN 3"' in done.stdout
    assert "left out    1 of 11 training problems also occur in the problems of the evaluation" in done.stdout
    assert "prompts     plain text: data.chat_template is false" in done.stdout


def test_the_suite_of_the_recipes_own_task_is_divided_by_the_recipes_options(tmp_path: Path) -> None:
    overrides = ("eval.suites=[running_checksum]", "data.options.size=2000")
    sets = [word for override in overrides for word in ("--set", override)]
    done = arl("train", QUICKSTART, "--dry-run", *sets, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_suite_that_does_not_exist_or_is_empty_is_refused(tmp_path: Path, files: str) -> None:
    (tmp_path / "mine.py").write_text(
        "from arl.tasks.running_checksum import RunningChecksum\n"
        "class Nothing(RunningChecksum):\n"
        "    def problems(self, split, seed):\n"
        "        return []\n"
    )
    model = make_model(tmp_path / "model", TURNS)
    absent = dry_run(tmp_path, files, "eval.suites=[aime26]", model=model)
    assert absent.returncode == 2
    assert "eval.suites 'aime26': did you mean aime2" in absent.stderr
    empty = dry_run(tmp_path, files, "eval.suites=['mine:Nothing']", model=model)
    assert empty.returncode == 2
    assert "eval.suites mine:Nothing: has no evaluation problem" in empty.stderr


def test_long_prompts_are_refused_with_the_problem_or_left_out(tmp_path: Path, files: str) -> None:
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"question": "Why? " * 60}))
    model = make_model(tmp_path / "model", TURNS)
    refused = dry_run(tmp_path, files, model=model)
    assert refused.returncode == 2
    assert "exceed the model's context of 128" in refused.stderr
    assert "data.max_prompt_tokens 96" in refused.stderr
    assert "The longest is problem " in refused.stderr
    assert "'Why? Why? " in refused.stderr
    passed = dry_run(tmp_path, files, "data.max_prompt_tokens=96", model=model)
    assert passed.returncode == 0, passed.stderr
    assert "left out    1 prompts longer than data.max_prompt_tokens 96 left out" in passed.stdout


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("data.system=Be brief.", "data.system 'Be brief.': needs a chat template"),
        ("data.suffix=Go.", "data.suffix 'Go.': a model.tiny is taught its task's prompts as they are"),
    ],
)
def test_a_tiny_model_takes_its_tasks_prompts_as_they_are(tmp_path: Path, override: str, complaint: str) -> None:
    done = arl("train", QUICKSTART, "--dry-run", "--set", override, "--set", "warmup=false", cwd=tmp_path)
    assert done.returncode == 2
    assert complaint in done.stderr
