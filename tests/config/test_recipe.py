"""A recipe is refused with file, line, field, value, rule and remedy, or it is right."""

from pathlib import Path

import pytest
import yaml

from arl.config.recipe import LagFile
from arl.config.recipe_file import dump_recipe, load_recipe
from arl.errors import RecipeError

GOOD = """\
name: small
model:
  tiny: {}
data: {task: running_checksum}
train:
  minibatches: 4
"""


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(GOOD)
    return path


def refusal(path: Path, text: str, *overrides: str) -> str:
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    return str(caught.value)


@pytest.mark.parametrize("lag", ["3", "0", "{dist: lags.json}", "{trace: runs/small}"])
def test_a_lag_takes_the_place_of_the_bound_and_loads_again(recipe_file: Path, tmp_path: Path, lag: str) -> None:
    assert load_recipe(recipe_file).rollout.staleness == 4
    recipe = load_recipe(recipe_file, [f"rollout.lag={lag}"])
    assert recipe.rollout.lag == (int(lag) if lag.isdecimal() else LagFile.model_validate(yaml.safe_load(lag)))
    assert recipe.rollout.staleness is None
    (tmp_path / "dumped.yaml").write_text(dump_recipe(recipe))
    assert load_recipe(tmp_path / "dumped.yaml") == recipe
    bounded = load_recipe(tmp_path / "dumped.yaml", ["rollout.lag=null", "rollout.staleness=2"])
    assert (bounded.rollout.lag, bounded.rollout.staleness) == (None, 2)


def test_overrides_win_in_order_and_may_open_a_section(recipe_file: Path) -> None:
    recipe = load_recipe(recipe_file, ["rollout.staleness=1", "rollout.staleness=2", "reward.overlong.buffer=5"])
    assert recipe.rollout.staleness == 2
    assert recipe.reward.overlong is not None
    assert recipe.reward.overlong.buffer == 5


def test_an_override_with_a_model_takes_the_place_of_a_tiny_one(recipe_file: Path) -> None:
    recipe = load_recipe(recipe_file, ["model.path=somewhere"])
    assert (recipe.model.path, recipe.model.tiny) == ("somewhere", None)


def test_another_task_does_not_inherit_the_options_of_the_files_task(recipe_file: Path) -> None:
    recipe_file.write_text(GOOD.replace("running_checksum", "running_checksum, options: {size: 9}"))
    assert load_recipe(recipe_file, ["data.task=running_checksum"]).data.options["size"] == 9
    other = load_recipe(recipe_file, ["data.task=long_tail", "data.options.size=7"])
    assert other.data.options == {"size": 7}


def test_the_options_of_a_task_are_checked_by_the_task(recipe_file: Path) -> None:
    task = "data: {task: running_checksum}"
    options = "data:\n  task: running_checksum\n  options:\n    "
    assert ":7: data.options.sizes: unknown key; did you mean size?" in refusal(
        recipe_file, GOOD.replace(task, options + "sizes: 1")
    )
    assert ":7: data.options.size = 0: must be greater than 0" in refusal(
        recipe_file, GOOD.replace(task, options + "size: 0")
    )
    assert ":4: data.options {'size': 3}: these are settings of a task" in refusal(
        recipe_file, GOOD.replace("tiny: {}", "path: m").replace(task, "data: {path: x.jsonl, options: {size: 3}}")
    )


def test_a_leading_tilde_is_the_home_directory_in_every_path(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    recipe_file.write_text(GOOD + "output: {directory: ~/runs}\n")
    recipe = load_recipe(recipe_file, ["data.path=~/*.jsonl", "model.path=~/model~1"])
    assert recipe.output.directory == f"{tmp_path}/runs"
    assert recipe.data.path == f"{tmp_path}/*.jsonl"
    assert recipe.model.path == f"{tmp_path}/model~1"
    assert "write ./~no-one for a name" in refusal(recipe_file, GOOD, "model.path=~no-one/m")


def test_every_mistake_is_reported_at_once(recipe_file: Path) -> None:
    message = refusal(recipe_file, GOOD + "  steps: 0\nrollout:\n  group_size: many\n")
    assert f"{recipe_file}:7: train.steps = 0: must be greater than 0" in message
    assert f"{recipe_file}:9: rollout.group_size = 'many'" in message


def test_a_bad_override_is_named_as_such(recipe_file: Path) -> None:
    assert refusal(recipe_file, GOOD, "rollout.staleness=-1").startswith("--set rollout.staleness=-1: ")
    assert "write it as section.field=value" in refusal(recipe_file, GOOD, "rollout.staleness")
    assert "is a value, not a section" in refusal(recipe_file, GOOD, "name.first=x")


@pytest.mark.parametrize(
    ("extra", "rule"),
    [
        (
            "  steps: 3\nrollout: {problems_per_step: 6}\n",
            "train.minibatches 4 must divide rollout.problems_per_step 6",
        ),
        (
            "  scale_by_ess: true\nobjective: ppo\n",
            "train.scale_by_ess: objective.kind ppo has no behavior weight, so nothing has an effective sample size",
        ),
        ("rollout: {group_size: 1}\n", "rollout.group_size 1 gives every episode advantage 0"),
        ("rollout: {top_p: 0.9}\n", "eval.top_p or eval.top_k, because training samples from the whole distribution"),
        ("rollout: {staleness: null}\n", "rollout.max_groups 96 makes groups about 4 versions old in the mean"),
        ("rollout: {lag: 1, staleness: 4}\n", "rollout.staleness 4: rollout.lag is exact; set one of the two to null"),
        ("rollout: {lag: 1}\nmode: collocated\n", ":8: mode collocated: with rollout.lag the trainer runs ahead"),
        ("rollout: {lag: 1}\nengine: {kv_policy: keep}\n", ":8: engine.kv_policy keep: with rollout.lag no swap"),
        ("rollout: {lag: {dist: x, trace: y}}\n", ":7: rollout.lag {'dist': 'x', 'trace': 'y'}: give a whole number"),
        (
            "rollout: {staleness: 1}\nsync: {every: 3}\n",
            "sync.every 3: the trainer is at most 2 versions ahead of the engines",
        ),
        (
            "mode: collocated\nsync: {every: 2}\n",
            "sync.every 2: mode collocated and rollout.lag say when engines load; leave it",
        ),
        (
            "rollout: {lag: 1}\nsync: {every: 2}\n",
            "sync.every 2: mode collocated and rollout.lag say when engines load; leave it",
        ),
        ("  ranks: 2\nworld: virtual\n", "train.ranks 2: world virtual trains in one process"),
        (
            "  compile: true\n  checkpointing: selective\n",
            "checkpointing selective: not with train.compile; use full or none",
        ),
        ("objective: {kind: gspo, clip_low: 3.0e-4}\n", ":7: objective.kind gspo: give clip_low and clip_high"),
        ("engine: {kind: sglang, tensor_parallel: 3}\n", "tensor_parallel 3: must divide model.tiny.heads 4"),
        (
            "objective: {teacher: {path: x, alone: true}, reference: {coefficient: 1, place: reward}}\n",
            "objective.reference.place reward: objective.teacher.alone uses no rewards",
        ),
        (
            "  critic: {}\nadvantage: gae\nobjective: {teacher: {path: x, alone: true}}\n",
            "train.critic: objective.teacher.alone uses no rewards",
        ),
        ("  critic: {warmup_steps: 60}\nadvantage: gae\n", "the policy would not learn in any of the 60 train.steps"),
        ("  lora: {targets: []}\n", "train.lora.targets"),
        ("engine: {threads: 4}\nworld: virtual\n", "engine.threads 4: world virtual computes with one thread"),
    ],
)
def test_impossible_combinations_are_refused_by_the_rule_they_break(recipe_file: Path, extra: str, rule: str) -> None:
    assert rule in refusal(recipe_file, GOOD + extra)


def test_a_missing_file_and_broken_yaml_are_told_apart(recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(tmp_path / "absent.yaml")
    assert "not valid YAML" in refusal(recipe_file, "train: [1")
    assert "a recipe is a mapping" in refusal(recipe_file, "just words")
