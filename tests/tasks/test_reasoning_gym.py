"""reasoning-gym: its data sets are tasks by name, with their own options and scorers."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from arl.config.data_section import Data
from arl.config.imports import import_function
from arl.config.recipe import TinyModel
from arl.errors import ArlError, RecipeError
from arl.models.tiny import character_tokenizer, make_tiny_model
from arl.reward.pool import RewardPool
from arl.reward.scorer import Scorer, UngradedLog
from arl.reward.worker import Settings
from arl.tasks.base import Split
from arl.tasks.registry import open_task, task_part
from arl.types import Problem, Response
from tests.extending.short_run import ShortRun, step_records
from tests.published_models import CHARACTERS, TEMPLATE

factory = pytest.importorskip("reasoning_gym.factory", reason="reasoning-gym is not installed")

# Entries of these name no answer, because many are right.
WITHOUT_ANSWER = {"graph_color", "rubiks_cube", "boxnet", "rush_hour", "propositional_logic"}
SPLITS: tuple[Split, Split] = ("training", "evaluation")


def data_of(name: str, **options: object) -> Data:
    return Data.model_validate({"reasoning_gym": name, "options": options})


def test_a_question_is_on_one_side_whatever_the_seed() -> None:
    task = open_task(data_of("chain_sum", size=400, max_terms=2, max_digits=1, eval_fraction=0.3))
    sides = [{problem.prompt for seed in (0, 1) for problem in task.problems(split, seed)} for split in SPLITS]
    assert sides[0].isdisjoint(sides[1])
    assert min(map(len, sides)) >= 20
    assert task.problems("training", 0) != task.problems("training", 1)


def test_its_own_scorer_grades_the_tagged_answer_in_a_reward_worker(tmp_path: Path) -> None:
    data = data_of("chain_sum", size=10)
    problem = open_task(data).problems("training", 0)[0]
    texts = [f"<answer>1</answer>, no: <answer>{problem.answer}</answer>", f"{problem.answer}", "<answer>x</answer>"]

    async def main() -> list[float]:
        reward = task_part(str(data.task), "reward")
        log = UngradedLog(tmp_path / "reward.log", lambda text: None)
        settings = Settings((reward,), workers=1, timeout=30, memory_gb=2)
        async with RewardPool(settings, startup=60, log=log.log, environment={}, ungraded=log) as pool:
            grades = await asyncio.gather(*(Scorer(pool, reward).score(problem, Response(text)) for text in texts))
            return [grade.reward for grade in grades]

    right, untagged, wrong = asyncio.run(main())
    assert right == 1
    assert untagged == 0
    assert wrong < 0.1


def test_without_a_tag_the_whole_response_is_the_answer() -> None:
    data = data_of("chain_sum", size=10, answer_tag="")
    problem = open_task(data).problems("training", 0)[0]
    assert open_task(data).reward(problem, Response(f" {problem.answer}\n")) == 1


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ("{reasoning_gym: chian_sum}", "has no attribute chian_sum; did you mean chain_sum?"),
        ("{reasoning_gym: chain_sum, options: {max_term: 3}}", "data.options.max_term: unknown key; did you mean max_"),
        ("{reasoning_gym: chain_sum, options: {max_terms: 1}}", "reasoning-gym's chain_sum: max_terms must be >= min_"),
        (
            "{reasoning_gym: countdown}",
            "data.options.trust_answers: required for countdown, because its scorer evaluates",
        ),
        ("{reasoning_gym: chain_sum, task: arithmetic}", "data.reasoning_gym chain_sum: data.task arithmetic is named"),
    ],
)
def test_a_wrong_name_or_option_is_refused_by_name(tmp_path: Path, data: str, rule: str) -> None:
    with pytest.raises(ArlError) as caught:
        ShortRun(tmp_path, f"data={data}")
    assert isinstance(caught.value, RecipeError)
    assert rule in str(caught.value)


def test_a_data_set_trains(tmp_path: Path) -> None:
    shape = TinyModel(hidden_size=32, layers=1, heads=2, intermediate_size=64, context=1024)
    make_tiny_model(shape, CHARACTERS, 0, tmp_path / "model")
    tokenizer = character_tokenizer(CHARACTERS)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(tmp_path / "model")
    # the answer is any one letter, so that a model that knows nothing is right sometimes
    data = "data={reasoning_gym: coin_flip, options: {size: 60, answer_tag: ''}}"
    run = ShortRun(tmp_path, f"model.path={tmp_path / 'model'}", data, "rollout.max_new_tokens=8")
    records = [record for record in step_records(run.train()) if "reward/trained_mean" in record]
    assert len(records) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(factory.DATASETS))
def test_every_data_set_scores_its_own_answer_with_the_usual_options(name: str) -> None:
    specs = {"datasets": [{"name": "chain_sum", "weight": 1, "config": {}}]} if name == "composite" else {}
    data = data_of(name, size=3, trust_answers=True, **specs)
    assert Data.model_validate(data.model_dump(mode="json", exclude_none=True)) == data, "a run's recipe.yaml"
    task = open_task(data)
    problem = [*task.problems("training", 1), *task.problems("evaluation", 1)][0]
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(problem), type=Problem)
    score = import_function(task_part(str(data.task), "reward"), "reward.function")
    assert score(sent, Response("I do not know.")) < 0.1
    if name not in WITHOUT_ANSWER:
        assert score(sent, Response(f"<answer>{problem.answer}</answer>")) == 1
