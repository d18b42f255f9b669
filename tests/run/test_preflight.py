"""What preflight finds out before anything starts, about GPUs, prompts and problems, and what the plan shows."""

import json
import re
import shutil
from collections import namedtuple
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from arl.config.recipe import Recipe
from arl.config.recipe_file import dump_recipe, load_recipe
from arl.errors import InputError
from arl.launch import local
from arl.run.machines import resolve_auto
from arl.run.plan_text import render_plan
from arl.run.preflight import Plan, preflight
from arl.run.submit import plan_submission
from tests.data.chat_tokenizers import TURNS, chat_tokenizer
from tests.fake_nvml import FakeNvml, fake_nvml
from tests.forks import arl

Usage = namedtuple("Usage", "total used free")


def recipe(tmp_path: Path, **sections: object) -> Recipe:
    base = {
        "model": {"tiny": {}},
        "data": {"task": "running_checksum"},
        "rollout": {"max_new_tokens": 64},
        "output": {"directory": str(tmp_path / "runs")},
    }
    return Recipe.model_validate(base | sections)


def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...], **sections: object) -> Plan:
    monkeypatch.setattr(local, "visible_devices", lambda: devices)
    return preflight(recipe(tmp_path, **sections))


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Make a machine with eight GPUs, of which nobody uses any."""
    return fake_nvml(monkeypatch, 8)


# ---- who uses a GPU


def test_a_gpu_that_another_process_computes_on_is_refused_with_its_pid_name_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml
) -> None:
    eight.use(1, 4711, "/bin/a, b", 30_000_000_000)
    with pytest.raises(InputError, match=r"GPU 1 NVIDIA H200, 150\.8 GB: is in use by pid 4711 \(/bin/a, b\) w"):
        plan(tmp_path, monkeypatch, ("0", "1"))


# ---- what is missing


def test_too_little_shared_memory_for_nccl_is_refused_with_the_flags_of_docker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml
) -> None:
    monkeypatch.delenv("NCCL_SHM_DISABLE", raising=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(67_108_864, 0, 67_108_864))
    with pytest.raises(InputError, match=r"/dev/shm for NCCL, 0\.07 GB free; .* --shm-size=16g or --ipc=host"):
        plan(tmp_path, monkeypatch, ("0", "1"))
    monkeypatch.setenv("NCCL_SHM_DISABLE", "1")
    assert plan(tmp_path, monkeypatch, ("0", "1")).transport == "broadcast"


# ---- the plan


def test_the_plan_names_the_gpus_of_each_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eight: FakeNvml) -> None:
    monkeypatch.setattr(local, "visible_devices", lambda: ("4", "5", "6"))
    given = resolve_auto(recipe(tmp_path, engine={"replicas": 2}, train={"dtype": "float32"}))
    text = render_plan(given, preflight(given))
    assert re.search(r"engines     2 processes with \d+ CPU threads? each, GPU 4 \| 5; embedded, bfloat16", text)
    assert re.search(r"trainer     1 process with \d+ CPU threads?, GPU 6; float32", text)


def planned(tmp_path: Path, *overrides: str) -> str:
    """Return the plan that `arl train` shows before a job begins."""
    path = tmp_path / "recipe.yaml"
    path.write_text(dump_recipe(recipe(tmp_path, launcher="slurm")))
    return plan_submission(load_recipe(path, overrides), None)


def test_the_plan_of_several_nodes_says_what_each_is_for_and_on_which_its_gpus_are(tmp_path: Path) -> None:
    settings = ("cluster.nodes=4", "engine.replicas=4", "train.ranks=4")
    lines = planned(tmp_path, *settings, "cluster.flags={gpus-per-node: 2, cpus-per-task: 24}").splitlines()
    where = "controller on node 1, engines on node 1, node 2, trainer on node 3, node 4"
    assert f"cluster     slurm, 4 nodes; {where}" in lines
    (engines,) = (line for line in lines if line.startswith("engines"))
    assert "4 processes with 12 CPU threads each, 4 GPUs of node 1, node 2;" in engines
    (trainer,) = (line for line in lines if line.startswith("trainer"))
    assert "4 GPUs of node 3, node 4;" in trainer


# ---- problems


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


def test_the_plan_says_what_was_left_out(tmp_path: Path, files: str) -> None:
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write('\nnonsense\n{"question": "TRAIN 3"}\n{"question": "Test 1."}\n')
    overrides = ("data.malformed=skip", "data.overlap=drop", "data.chat_template=false", "train.ramp_steps=9999")
    done = dry_run(tmp_path, files, *overrides)
    assert done.returncode == 0, done.stderr
    assert "note        1 of 13 rows of data.path are malformed and left out: train.jsonl:11: not JSON" in done.stdout
    assert 'note        1 repeated questions left out (data.deduplicate), as train.jsonl:12 "TRAIN 3"' in done.stdout
    assert "note        1 of 11 training problems also occur in the problems of the evaluation" in done.stdout
    assert "prompts     plain text: data.chat_template is false" in done.stdout
    assert "note        rollout.problems_per_step 32: a step holds some of the 10 problems twice" in done.stdout
    assert "note        train.ramp_steps 9999: the run ends in the ramp, after" in done.stdout
    assert "note        held_out: 3 answers; an accuracy near 50 % has a standard error of 28.9" in done.stdout


def test_a_critic_with_another_tokenizer_is_refused_by_a_token_that_differs(tmp_path: Path, files: str) -> None:
    other = tmp_path / "other"
    tokenizer = chat_tokenizer(TURNS)
    tokenizer.add_tokens(["<new>"])
    make_model(other, TURNS)
    tokenizer.save_pretrained(other)
    done = dry_run(tmp_path, files, "advantage.kind=gae", f"train.critic.path={other}")
    assert done.returncode == 2
    assert f"train.critic.path {other}: its vocabulary is not the policy's" in done.stderr
    assert "'<new>'" in done.stderr


def test_gold_answers_that_no_response_can_match_are_refused_or_counted_with_their_row(
    tmp_path: Path, files: str
) -> None:
    model = make_model(tmp_path / "model", TURNS)
    train = tmp_path / "train.jsonl"
    train.write_text("\n".join(json.dumps({"question": f"{i}?", "solution": f"It is {i}."}) for i in range(10)))
    refused = dry_run(tmp_path, files, model=model)
    assert refused.returncode == 2
    assert "10 of 13 gold answers can be matched by no response, as that of train.jsonl:1, '': it is empty" in (
        refused.stderr
    )
    assert "name their column in data.columns.answer" in refused.stderr
    assert "the other columns are solution" in refused.stderr
    train.write_text("\n".join(json.dumps({"question": f"{i}?", "answer": [None, i][i > 3]}) for i in range(10)))
    passed = dry_run(tmp_path, files, model=model)
    assert passed.returncode == 0, passed.stderr
    assert "note        4 of 13 gold answers can be matched by no response, as that of train.jsonl:1" in passed.stdout


def test_a_check_of_answers_that_raises_is_a_reason_and_not_the_end(tmp_path: Path, files: str) -> None:
    (tmp_path / "own.py").write_text(
        "def score(problem, response):\n    return 0.0\n"
        "def unusable(answer):\n    return 1 / int(answer) < 0\n"
        "score.unusable = unusable\n"
    )
    done = dry_run(tmp_path, files, "reward.function=own:score")
    assert done.returncode == 0, done.stderr
    assert "note        2 of 13 gold answers can be matched by no response" in done.stdout
    assert "its check failed (ZeroDivisionError" in done.stdout


def test_long_prompts_are_refused_with_the_problem_or_left_out(tmp_path: Path, files: str) -> None:
    with (tmp_path / "train.jsonl").open("a") as file:
        file.write("\n" + json.dumps({"question": "Why? " * 60}))
    model = make_model(tmp_path / "model", TURNS)
    refused = dry_run(tmp_path, files, model=model)
    assert refused.returncode == 2
    assert "exceed the model's context of 128" in refused.stderr
    assert "data.max_prompt_tokens 96" in refused.stderr
    assert 'The longest is train.jsonl:11 "Why? Why? ' in refused.stderr
    passed = dry_run(tmp_path, files, "data.max_prompt_tokens=96", model=model)
    assert passed.returncode == 0, passed.stderr
    assert "note        1 prompts longer than data.max_prompt_tokens 96 left out" in passed.stdout
    answers = dry_run(tmp_path, files, "data.max_prompt_tokens=96", "eval.max_new_tokens=120", model=model)
    assert answers.returncode == 2
    assert "suite held_out: a prompt of" in answers.stderr
    nothing = dry_run(tmp_path, files, "data.max_prompt_tokens=9", model=model)
    assert "leave none to train on" in nothing.stderr
    assert "11 prompts longer than data.max_prompt_tokens 9 left out" in nothing.stderr
