"""Arms are compared at equal budgets, by seed, and a sentence says what the seeds can show."""

from pathlib import Path

import pytest

from arl.report.assemble import Report, build_report
from arl.report.parts import Figure, Item, Table
from arl.report.quantities import LAST, Budget
from arl.report.statistics import MeanOfSeeds, widening
from tests.report.synthetic_runs import evaluation, step_record, write_metrics, write_recipe, write_sweep


def all_items(report: Report) -> list[Item]:
    """Return the parts of all sections, those that are folded as well."""
    return [item for section in report.sections for item in [*section.items, *section.more]]


def table(report: Report, title: str) -> Table:
    (found,) = [item for item in all_items(report) if isinstance(item, Table) and item.title == title]
    return found


def figures(report: Report) -> dict[str, Figure]:
    return {item.title: item for item in all_items(report) if isinstance(item, Figure)}


def scored_run(
    directory: Path, accuracies: dict[int, float], *settings: str, seed: int = 0, problems: int = 10_000
) -> None:
    """Write a run of ten steps with these accuracies by step."""
    directory.mkdir(parents=True)
    write_recipe(directory, settings, seed)
    evaluations = [evaluation(step, {"held_out": accuracy}, problems) for step, accuracy in accuracies.items()]
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


def test_there_is_no_verdict_from_two_seeds_nor_within_the_noise_of_few_answers(tmp_path: Path) -> None:
    def sentence(name: str, seeds: int, problems: int) -> str:
        for seed in range(seeds):
            for kind, accuracy in {"ppo": 0.5, "decoupled_ppo": 0.6}.items():
                run = tmp_path / name / f"{kind}-{seed}"
                scored_run(run, {10: accuracy + seed / 1000}, f"objective.kind={kind}", seed=seed, problems=problems)
        (found,) = build_report([tmp_path / name]).comparison.sentences
        return found

    assert sentence("two", 2, 10_000).startswith(
        "decoupled_ppo and ppo: no verdict from fewer than 3 seeds (10.0 points [10.0,"
    )
    noise = 196 * ((0.501 * 0.499 + 0.601 * 0.399) / 3 / 60) ** 0.5
    assert f"no verdict within the evaluation's own noise of ±{noise:.1f} points" in sentence("few", 3, 60)
    assert sentence("many", 3, 10_000).startswith("decoupled_ppo is 10.0 points [10.0, 10.0] above ppo at step 10,")


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
    shown = table(report, "Accuracy on held_out, percent")
    assert shown.header[2:] == ["before", "step 5", "step 6", "last"]
    assert shown.rows[0][2:] == ["10.0", "50.0", "≈ 54.0", "70.0"]


def test_accuracies_of_unlike_tasks_are_never_compared_and_their_speed_is(tmp_path: Path) -> None:
    scored_run(tmp_path / "one", {10: 0.7})
    scored_run(tmp_path / "other", {10: 0.2}, "data.task=arithmetic")
    report = build_report([tmp_path])
    assert report.comparison.differences == []
    assert any("The runs differ in data.task" in note for note in report.notes)
    assert {quantity.letter for quantity in report.comparison.quantities} == {"A", "B"}
    arms = table(report, "Arms at their last measurement")
    assert {name[-12:] for name in arms.header[3:5]} == {"(protocol A)", "(protocol B)"}
    assert sorted(row[3:5] for row in arms.rows) == [["20.0", "–"], ["–", "70.0"]]
    assert [row[1] for row in table(report, "Speed").rows] == ["500", "500"]


def test_the_papers_table_has_a_row_for_each_bound_and_a_column_for_each_objective(tmp_path: Path) -> None:
    write_sweep(tmp_path, [0, 8], ["ppo", "decoupled_ppo"], seeds=2, suites=["held_out", "aime24"])
    shown = table(build_report([tmp_path]), "Staleness and objectives, last")
    assert shown.header == [
        "arm",
        "aime24 decoupled_ppo",
        "aime24 ppo",
        "held_out decoupled_ppo",
        "held_out ppo",
        "tokens/s decoupled_ppo",
        "tokens/s ppo",
    ]
    assert [row[0] for row in shown.rows] == ["staleness=0", "staleness=8"]
    assert [row[-2:] for row in shown.rows] == [["500", "500"]] * 2


def rising_run(directory: Path, accuracy: float, *settings: str, seed: int = 0) -> None:
    """Write a run of ten steps that has half of the accuracy at step 5 and all of it at step 10."""
    scored_run(directory, {step: accuracy * step / 10 for step in (0, 5, 10)}, *settings, seed=seed)


def test_accuracy_is_drawn_against_the_bound_at_each_budget_and_over_steps_with_a_band(tmp_path: Path) -> None:
    for kind, accuracy in {"ppo": 0.4, "decoupled_ppo": 0.8}.items():
        for bound in ("0", "16", "null"):
            for seed in range(3):
                run = tmp_path / f"{kind}-{bound}-{seed}"
                settings = [f"rollout.staleness={bound}", f"objective.kind={kind}", "rollout.max_groups=64"]
                rising_run(run, accuracy + seed / 10, *settings, seed=seed)
    drawn = figures(build_report([tmp_path], [Budget("steps", 5)]))
    at_5, at_last, over_steps, *_ = drawn.values()
    assert at_5.title == "Accuracy on held_out, percent, against the staleness bound η, versions, step 5"
    assert at_last.ticks == ["0", "16", "∞"]
    decoupled, naive = at_last.series
    assert (decoupled.name, naive.name) == ("decoupled_ppo", "ppo")
    assert naive.y == pytest.approx([50, 50, 50])
    assert decoupled.y == pytest.approx([90, 90, 90])
    assert naive.high - naive.y == pytest.approx([10 * widening(3)] * 3, abs=0.01)  # as every interval
    assert decoupled.high == pytest.approx([100, 100, 100])  # no accuracy is above
    assert at_5.series[1].y == pytest.approx([25, 25, 25])
    *seeds, mean = over_steps.series[:4]
    assert [(seed.name, seed.y[-1]) for seed in seeds] == [("", pytest.approx(y)) for y in (80, 90, 100)]
    assert list(mean.x) == [0, 5, 10]
    assert mean.y == pytest.approx([0, 45, 90])
    assert mean.high == pytest.approx([0, 45 + 5 * widening(3), 100], abs=0.01)
