"""Arms are compared at equal budgets, by seed, and a sentence says what the seeds can show."""

from pathlib import Path
from typing import Any

import pytest

from arl.report.assemble import Report, build_report
from arl.report.parts import Figure, Item, ReportSection, Table, line_of
from arl.report.quantities import LAST, Budget
from arl.report.statistics import MeanOfSeeds, widening
from tests.report.synthetic_runs import evaluation, step_record, write_metrics, write_recipe, write_sweep


def all_items(report: Report) -> list[Item]:
    """Return the parts of all sections, those that are folded as well."""
    return [item for section in report.sections for item in [*section.items, *section.more]]


def table(report: Report, id: str) -> Table:
    (found,) = [item for item in all_items(report) if isinstance(item, Table) and item.id == id]
    return found


def figures(report: Report) -> dict[str, Figure]:
    return {item.id: item for item in all_items(report) if isinstance(item, Figure)}


def scored_run(directory: Path, accuracies: dict[int, float], *settings: str, seed: int = 0) -> None:
    """Write a run of ten steps with these accuracies by step."""
    directory.mkdir(parents=True)
    write_recipe(directory, settings, seed)
    evaluations = [evaluation(step, {"held_out": accuracy}) for step, accuracy in accuracies.items()]
    write_metrics(directory, [*(step_record(step, 0) for step in range(1, 11)), *evaluations])


def last_value(report: Report, arm: int, name: str = "held_out") -> MeanOfSeeds | None:
    quantity = next(quantity for quantity in report.comparison.quantities if quantity.name == name)
    value = report.comparison.values[quantity, LAST, arm]
    return None if value is None else value.mean


def test_a_real_difference_is_a_sentence_with_its_interval_and_no_difference_is_said_to_be_none(tmp_path: Path) -> None:
    for seed in range(5):
        noise = 0.001 * seed
        scored_run(tmp_path / f"d{seed}", {0: 0.1, 10: 0.8}, "objective.kind=decoupled_ppo", seed=seed)
        scored_run(tmp_path / f"p{seed}", {0: 0.1, 10: 0.7 + noise}, "objective.kind=ppo", seed=seed)
    (sentence,) = build_report([tmp_path]).comparison.sentences
    assert sentence.startswith("decoupled_ppo is 9.8 points [")
    assert sentence.endswith("] above ppo at step 10, accuracy on held_out, 5 seeds.")
    (tmp_path / "same").mkdir()
    for seed in range(5):
        noise = 0.01 if seed % 2 else -0.01
        scored_run(tmp_path / "same" / f"d{seed}", {10: 0.8}, "objective.kind=decoupled_ppo", seed=seed)
        scored_run(tmp_path / "same" / f"p{seed}", {10: 0.8 + noise}, "objective.kind=ppo", seed=seed)
    (sentence,) = build_report([tmp_path / "same"]).comparison.sentences
    assert "no difference that 5 seeds can show (" in sentence


def test_one_seed_has_no_interval_and_says_so(tmp_path: Path) -> None:
    write_sweep(tmp_path, [8], ["ppo", "decoupled_ppo"], seeds=1)
    report = build_report([tmp_path])
    assert all("one seed has no interval" in sentence for sentence in report.comparison.sentences)
    value = last_value(report, 0)
    assert value is not None
    assert (value.low, value.seeds) == (None, 1)


def test_pairing_by_seed_removes_what_seeds_have_in_common(tmp_path: Path) -> None:
    for seed in range(4):
        ease = 0.1 * seed
        scored_run(tmp_path / f"d{seed}", {10: 0.4 + ease}, "objective.kind=decoupled_ppo", seed=seed)
        scored_run(tmp_path / f"p{seed}", {10: 0.38 + ease}, "objective.kind=ppo", seed=seed)
    report = build_report([tmp_path])
    (found,) = [one for one in report.comparison.differences if one.quantity.is_accuracy]
    assert found.is_paired
    assert abs(found.estimate.mean) == pytest.approx(0.02)
    assert not found.estimate.holds_zero


def test_a_seed_that_crashed_early_and_one_without_an_evaluation_hold_no_other_back(tmp_path: Path) -> None:
    for seed in range(3):
        scored_run(tmp_path / f"d{seed}", {0: 0.1, 10: 0.8}, "objective.kind=decoupled_ppo", seed=seed)
        scored_run(tmp_path / f"p{seed}", {0: 0.1, 10: 0.5}, "objective.kind=ppo", seed=seed)
    scored_run(tmp_path / "crashed", {0: 0.1}, "objective.kind=ppo", seed=3)
    scored_run(tmp_path / "unmeasured", {}, "objective.kind=ppo", seed=4)
    report = build_report([tmp_path])
    (sentence,) = report.comparison.sentences
    assert sentence.startswith("decoupled_ppo is 30.0 points [30.0, 30.0] above ppo at step 10,")
    assert "3 seeds" in sentence
    value = last_value(report, 1)
    assert value is not None
    assert (value.mean, value.seeds) == (0.5, 3)


def test_values_between_evaluations_are_marked_and_none_is_given_beyond_them(tmp_path: Path) -> None:
    scored_run(tmp_path / "run", {0: 0.1, 5: 0.5, 10: 0.7})
    report = build_report([tmp_path], [Budget("steps", at) for at in (5, 6, 11)])
    assert table(report, "values-accuracy-on-held_out").rows[0][2:] == ["50.0", "≈ 54.0", "–", "70.0"]


def test_accuracies_of_unlike_tasks_are_never_compared_and_their_speed_is(tmp_path: Path) -> None:
    scored_run(tmp_path / "one", {10: 0.7})
    scored_run(tmp_path / "other", {10: 0.2}, "data.task=arithmetic")
    report = build_report([tmp_path])
    assert report.comparison.differences == []
    assert any("The runs differ in data.task" in note for note in report.notes)
    assert {quantity.letter for quantity in report.comparison.quantities} == {"A", "B"}
    assert {row[3][:4] for row in table(report, "arms").rows} == {"70.0", "20.0"}
    assert {row[3][5:] for row in table(report, "arms").rows} == {"A", "B"}
    assert [row[1] for row in table(report, "speed-table").rows] == ["500", "500"]


def test_the_papers_table_has_a_row_for_each_bound_and_a_column_for_each_objective(tmp_path: Path) -> None:
    write_sweep(tmp_path, [0, 8], ["ppo", "decoupled_ppo"], seeds=2, suites=["held_out", "aime24"])
    shown = table(build_report([tmp_path]), "table-2-last-0")
    assert shown.header == [
        "η",
        "aime24 decoupled_ppo",
        "aime24 ppo",
        "held_out decoupled_ppo",
        "held_out ppo",
        "tokens/s decoupled_ppo",
        "tokens/s ppo",
    ]
    assert [row[0] for row in shown.rows] == ["0", "8"]
    assert [row[-2:] for row in shown.rows] == [["500", "500"]] * 2


def test_curves_hold_what_was_measured_and_a_band_for_the_seeds(tmp_path: Path) -> None:
    for seed in range(2):
        scored_run(tmp_path / f"{seed}", {0: 0.1, 5: 0.5 + seed / 10, 10: 0.7}, seed=seed)
    band, line = figures(build_report([tmp_path]))["curve-accuracy-on-held_out-steps"].traces
    assert line["x"] == [0, 5, 10]
    assert line["y"] == pytest.approx([10.0, 55.0, 70.0])
    assert line["line"] == line_of(0)
    assert band["x"] == [0, 5, 10, 10, 5, 0]
    assert max(band["y"]) == pytest.approx(55 + 5 * widening(2), abs=0.01)
    tokens = figures(build_report([tmp_path]))["curve-accuracy-on-held_out-tokens"].traces[1]
    assert tokens["x"] == [0, 5000, 10000]


def test_objectives_are_compared_whatever_their_own_fields_and_a_cap_in_the_place_of_a_bound_is_no_axis(
    tmp_path: Path,
) -> None:
    kinds = (
        "kind=ppo",
        "kind=decoupled_ppo objective.proximal=recompute",
        "kind=decoupled_ppo objective.proximal=loglinear",
    )
    bounds = {"0": ["rollout.staleness=0"], "8": ["rollout.staleness=8", "rollout.max_groups=64"]}
    for bound, settings in bounds.items():
        for number, kind in enumerate(kinds):
            objective = f"objective.{kind}".split()
            scored_run(tmp_path / f"{bound}-{number}", {10: 0.5 + number / 10}, *settings, *objective)
    report = build_report([tmp_path])
    names = [arm.name for arm in report.arms]
    assert names[:3] == [
        "staleness=0, decoupled_ppo, loglinear",
        "staleness=0, decoupled_ppo, recompute",
        "staleness=0, ppo",
    ]
    sentences = report.comparison.sentences
    assert len(sentences) == 3 + 2 * 3
    assert any(line.startswith("decoupled_ppo, recompute at staleness 8 is 10.0") for line in sentences)
    assert any(line.startswith("loglinear at staleness 0 with decoupled_ppo is 10.0") for line in sentences)
    shown = table(report, "table-2-last-0")
    assert [row[:4] for row in shown.rows] == [["0", "70.0", "60.0", "50.0"], ["8", "70.0", "60.0", "50.0"]]


def rising_run(directory: Path, accuracy: float, *settings: str, seed: int = 0) -> None:
    """Write a run of ten steps that has half of the accuracy at step 5 and all of it at step 10."""
    scored_run(directory, {step: accuracy * step / 10 for step in (0, 5, 10)}, *settings, seed=seed)


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
                rising_run(run, accuracy + seed / 10, *settings, seed=seed)
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
            rising_run(tmp_path / f"{rate}-{lag}", 0.5, *settings)
    figure = comparison_of(tmp_path).items[0]
    assert isinstance(figure, Figure)
    assert figure.layout["xaxis"]["ticktext"] == ["1", "4"]
    assert list(lines(figure)) == ["learning_rate=0.0001", "learning_rate=0.001"]
    assert "error_y" in figure.traces[0]
