"""The time of a sweep is estimated from runs that are finished."""

import os
from pathlib import Path

import pytest

from arl.config.recipe_file import dump_recipe, load_recipe
from arl.sweep.estimate import TimeEstimate, duration, estimate, recorded_times


def test_the_estimate_is_the_mean_of_the_sweeps_own_runs(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    file = tmp_path / "logs" / "times.jsonl"
    file.write_text('{"run": "a", "seconds": 10}\n{"run": "b", "seconds": 20}\n{"run": "c", "sec')
    assert recorded_times(tmp_path) == [10.0, 20.0], "the last line is half written"
    known = estimate(tmp_path, load_recipe(recipe))
    assert known == TimeEstimate(15.0, "2 finished runs of this sweep")
    assert known.total(num_runs=5, jobs=2) == 45.0


def test_a_run_of_the_same_recipe_beside_the_sweep_serves_as_well(recipe: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    base = load_recipe(recipe)
    for name, overrides in {"other": ["train.steps=7"], "same": ["seed=3", "name=same"]}.items():
        (runs / name).mkdir(parents=True)
        (runs / name / "recipe.yaml").write_text(dump_recipe(load_recipe(recipe, overrides)))
        (runs / name / "summary.json").touch()
        os.utime(runs / name / "recipe.yaml", (1000.0, 1000.0))
        os.utime(runs / name / "summary.json", (1060.0, 1060.0))
    checkpoint = runs / "same" / "checkpoints" / "step_000002"
    checkpoint.mkdir(parents=True)
    os.utime(checkpoint, (1030.0, 1030.0))
    assert estimate(runs / "study", base) == TimeEstimate(60.0, f"the run {runs / 'same'}")
    os.utime(checkpoint, (990.0, 990.0))
    assert estimate(runs / "study", base) is None, "its last process has resumed it, and took a part of its time"
    assert estimate(tmp_path / "nowhere" / "study", base) is None


@pytest.mark.parametrize(("seconds", "said"), [(48.2, "48 s"), (720, "12 min"), (11_100, "3 h 05 min")])
def test_times_are_written_as_people_say_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said
