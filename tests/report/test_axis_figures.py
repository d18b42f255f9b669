"""A sweep over a number is drawn against it: a line for each setting of what else differs, with intervals."""

from pathlib import Path
from typing import Any

import pytest

from arl.report.assemble import build_report
from arl.report.parts import Figure, ReportSection
from arl.report.quantities import Budget
from arl.report.statistics import widening
from tests.report.synthetic_runs import evaluation, step_record, write_metrics, write_recipe


def scored_run(directory: Path, accuracy: float, *settings: str, seed: int = 0) -> None:
    """Write a run of ten steps that has half of the accuracy at step 5 and all of it at step 10."""
    directory.mkdir(parents=True)
    write_recipe(directory, settings, seed)
    scores = [evaluation(step, {"held_out": accuracy * step / 10}) for step in (0, 5, 10)]
    write_metrics(directory, [*(step_record(step, 0) for step in range(1, 11)), *scores])


def comparison_of(path: Path) -> ReportSection:
    return build_report([path], [Budget("steps", 5)]).sections[0]


def lines(figure: Figure) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in figure.traces}


def test_accuracy_is_drawn_against_the_bound_before_anything_else_at_each_budget(tmp_path: Path) -> None:
    objectives = {"ppo": 0.4, "decoupled_ppo": 0.8}
    for kind, accuracy in objectives.items():
        for bound in ("0", "16", "null"):
            for seed in range(2):
                run = tmp_path / f"{kind}-{bound}-{seed}"
                settings = [f"rollout.staleness={bound}", f"objective.kind={kind}", "rollout.max_groups=64"]
                scored_run(run, accuracy + seed / 10, *settings, seed=seed)
    at_5, at_last = comparison_of(tmp_path).items[:2]
    assert isinstance(at_5, Figure)
    assert isinstance(at_last, Figure)
    assert at_5.title == "Accuracy on held_out against η, step 5"
    assert at_last.layout["xaxis"]["ticktext"] == ["0", "16", "∞"]
    assert at_5.layout["yaxis"]["range"] == at_last.layout["yaxis"]["range"]
    drawn = lines(at_last)
    assert drawn["ppo"]["text"] == ["0", "16", "∞"]
    assert drawn["ppo"]["y"] == pytest.approx([45, 45, 45])
    assert drawn["decoupled_ppo"]["y"] == pytest.approx([85, 85, 85])
    assert drawn["ppo"]["error_y"]["array"][0] == pytest.approx(5 * widening(2), abs=0.01)  # as every interval
    assert lines(at_5)["ppo"]["y"] == pytest.approx([22.5, 22.5, 22.5])


def test_an_exact_lag_is_an_axis_and_the_learning_rates_are_its_lines(tmp_path: Path) -> None:
    for rate in ("1e-4", "1e-3"):
        for lag in (1, 4):
            settings = [f"rollout.lag={lag}", "rollout.staleness=null", f"train.learning_rate={rate}"]
            scored_run(tmp_path / f"{rate}-{lag}", 0.5, *settings)
    figure = comparison_of(tmp_path).items[0]
    assert isinstance(figure, Figure)
    assert figure.layout["xaxis"]["ticktext"] == ["1", "4"]
    assert list(lines(figure)) == ["learning_rate=0.0001", "learning_rate=0.001"]
    assert "error_y" in figure.traces[0]
