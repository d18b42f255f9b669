"""A tracker is added from outside arl by module:attribute, and gets every step of a short training."""

from pathlib import Path

import pytest

from arl.errors import RecipeError
from tests.extending.short_run import VARIED_REWARDS, ShortRun, step_records, trained_rows

MINE = "tests.extending.my_tracker"


def test_a_users_tracker_gets_every_step_and_a_broken_one_is_dropped_with_one_line(tmp_path: Path) -> None:
    run = ShortRun(tmp_path, f"output.trackers=[{MINE}:CsvTracker, {MINE}:BrokenTracker]")
    summary = run.train()
    records = step_records(summary)
    lines = Path(summary.directory, "reward.csv").read_text().splitlines()
    assert len(records) == 2
    assert {line for line in lines if line.startswith("step")} == {
        f"step,{record['step']},{record['reward/trained_mean']}" for record in records
    }
    assert "name,short,2" in lines
    assert "closed" in lines
    dropped = f"tracker {MINE}:BrokenTracker is dropped, and the run goes on without it: OSError: no space left"
    assert run.output.getvalue().count(dropped) == 1


def test_a_users_tracker_with_a_third_method_is_shown_episodes_of_the_steps_that_the_recipe_names(
    tmp_path: Path,
) -> None:
    settings = ("output.samples_every=2", VARIED_REWARDS)
    summary = ShortRun(tmp_path, f"output.trackers=[{MINE}:SamplingTracker]", *settings).train()
    lines = Path(summary.directory, "reward.csv").read_text().splitlines()
    shown = [line.split(",") for line in lines if line.startswith("sample")]
    trained = {(row["problem_id"], row["advantage"]) for row in trained_rows(summary) if row["trained_at"] == 1}
    assert {(step, age) for _, step, _, age, _ in shown} <= {("2", "0"), ("2", "1")}
    assert len(shown) == 4
    assert {(problem, float(advantage)) for _, _, problem, _, advantage in shown} <= trained


def test_a_class_that_is_no_tracker_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=rf"'{MINE}:HalfTracker': lacks the method close\(\); see .*WandbTracker"):
        ShortRun(tmp_path, f"output.trackers=[{MINE}:HalfTracker]").train()
    assert not (tmp_path / "runs").exists()
