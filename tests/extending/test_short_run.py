"""A short training in which task, env, reward, objective, advantage, backend and trackers are a user's own."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch.distributed as dist

from arl.config.recipe import TinyModel
from arl.config.recipe_file import dump_recipe, load_recipe
from arl.metrics.summary import Summary
from arl.train.warmup import WarmupJob, warm_up
from tests.extending import my_objective
from tests.extending.my_task import LETTERS
from tests.extending.short_run import TRAJECTORIES, ShortRun, step_records, trained_rows
from tests.forks import ROOT

HERE = "tests.extending"
ECHO = f"{HERE}.my_task:Echo"
SHAPE = TinyModel(hidden_size=32, layers=1, heads=2, intermediate_size=32, context=64)
SETTINGS = (
    f"data.task={ECHO}",
    "data.options.longest=3",
    f"rollout.env={HERE}.my_env:ask_twice",
    f"reward={{function: '{HERE}.my_reward:ones_and_length', weights: {{length: 0}}, scale: 10, bias: -2}}",
    f"objective={{kind: '{HERE}.my_objective:Reinforce', penalty: 0.2}}",
    f"advantage={{kind: '{HERE}.my_advantage:Growing', discount: 0.9}}",
    f"engine.kind={HERE}.my_backend:PatternBackend",
    "engine.replicas=2",
    f"output.trackers=[{HERE}.my_tracker:SamplingTracker, {HERE}.my_tracker:BrokenTracker]",
    "output.samples_every=2",
    "eval.problems=8",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ShortRun:
    return ShortRun(tmp_path_factory.mktemp("seams"), *SETTINGS)


@pytest.fixture(scope="module")
def summary(run: ShortRun) -> Summary:
    return run.train()


def test_the_env_drives_turns_of_the_backend_over_the_tasks_problems(run: ShortRun, summary: Summary) -> None:
    assert run.recipe.data.options == {"longest": 3, "steps": 4}
    assert run.recipe.eval.temperature == 0.5
    rows = trained_rows(summary)
    assert len(rows) == TRAJECTORIES
    for row in rows:
        assert set(row["answer"]) <= set(LETTERS)
        sampled = [t for t, v in zip(row["token_ids"], row["policy_versions"], strict=True) if v >= 0]
        assert len(sampled) == 8, "the tool's text is not trained"
        for turn in (sampled[:4], sampled[4:]):
            assert all(b in (a + 1, 0) for a, b in pairwise(turn)), "consecutive ids, which begin again at 0"


def test_training_sees_shaped_rewards_and_the_evaluation_raw_ones(summary: Summary) -> None:
    for row in trained_rows(summary):
        assert row["reward"] == pytest.approx((dict(row["reward_parts"])["ones"] - 2) * 10)
    assert summary.accuracy_before is not None
    assert 0 <= summary.accuracy_before <= 1  # shaped, it would be below −10


def test_the_objective_names_its_metrics_and_its_gradient_counts(summary: Summary) -> None:
    records = [record for record in step_records(summary) if "grad_norm" in record]
    assert len(records) == 2
    for record in records:
        assert record["grad_norm"] > 0
        assert 0 < record["objective/penalty"] <= record["objective/penalty_max"]
        of_ages = [mean for mean in record["objective/penalty_by_age"] if mean is not None]
        assert min(of_ages) <= record["objective/penalty"] <= max(of_ages)
        assert "ratio/max" not in record


def test_a_tracker_gets_every_step_and_samples_and_a_broken_one_is_dropped(run: ShortRun, summary: Summary) -> None:
    lines = Path(summary.directory, "reward.csv").read_text().splitlines()
    steps = [record for record in step_records(summary) if "grad_norm" in record]
    assert {f"step,{record['step']},{record['reward/trained_mean']}" for record in steps} <= set(lines)
    assert "name,short,2" in lines
    assert "closed" in lines
    samples = [line.split(",") for line in lines if line.startswith("sample")]
    assert [step for _, step, *_ in samples] == ["2"] * 4
    dropped = f"tracker {HERE}.my_tracker:BrokenTracker is dropped, and the run goes on without it: OSError: no space"
    assert dropped in run.output.getvalue()


def test_fields_of_an_objective_are_fields_of_the_recipe_which_loads_again(run: ShortRun, tmp_path: Path) -> None:
    assert isinstance(run.recipe.objective, my_objective.Reinforce)
    assert run.recipe.objective.penalty == 0.2
    (tmp_path / "dumped.yaml").write_text(dump_recipe(run.recipe))
    assert load_recipe(tmp_path / "dumped.yaml") == run.recipe


def test_the_demonstrations_of_a_task_warm_a_tiny_model_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    warm_up(WarmupJob(model=SHAPE, task=ECHO, batch_size=4, eval_samples=4, max_new_tokens=8, output=out))
    dist.destroy_process_group()
    assert '"stage": "copying", "step": 4' in capsys.readouterr().out
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_an_advantage_of_ones_own_trains_to_the_bits_of_the_built_in_one(tmp_path: Path) -> None:
    def trained(advantage: str) -> str:
        rewarded = f"reward.function={HERE}.my_reward:ones"
        return ShortRun(tmp_path / advantage, f"advantage={advantage}", rewarded).train().weights_sha256

    assert trained("recipes.leave_one_out:LeaveOneOut") == trained("rloo") != trained("grpo")


def test_readme_shows_the_advantage_that_it_runs() -> None:
    module = (ROOT / "recipes" / "leave_one_out.py").read_text()
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown in module
    assert "recipes.leave_one_out:LeaveOneOut" in (ROOT / "README.md").read_text()
