"""Time, ages and tokens are accounted for: what is not explained is a part of its own, what is missing is said."""

from pathlib import Path

import pytest

from arl.report.arms import Arm, make_arms
from arl.report.assemble import Report, build_report, unaccounted
from arl.report.parts import Figure, Table
from arl.report.runs import load_runs
from arl.report.speed import UNEXPLAINED, advice, engine_shares, mean_shares, trainer_shares
from tests.report.synthetic_runs import Line, step_record, write_metrics, write_recipe
from tests.report.test_comparison import all_items


def arm_of(directory: Path, lines: list[Line], *settings: str) -> Arm:
    """Write one run with these records, and return its arm."""
    directory.mkdir()
    write_recipe(directory, settings, seed=0)
    write_metrics(directory, lines)
    (arm,) = make_arms(load_runs([directory])[0])[0]
    return arm


def steps(changed: Line, count: int = 4, age: int = 2) -> list[Line]:
    return [step_record(step, age) | changed for step in range(1, count + 1)]


def test_training_shows_every_part_of_the_reward_and_what_the_objective_logs(tmp_path: Path) -> None:
    own = {"reward/format": 0.5, "objective/penalty": 0.1, "objective/by_age": [0.1, 0.2, *[None] * 5], "entropy": 0.7}
    arm_of(tmp_path / "run", steps(own))
    (section,) = [one for one in build_report([tmp_path]).sections if one.id == "training"]
    *figures, table = section.items
    shown = [figure.title for figure in figures if isinstance(figure, Figure) and figure.series]
    own_titles = ["reward/format", "objective/penalty", "objective/by_age by age of the token"]
    assert shown == ["reward/trained_mean", "entropy", *own_titles]
    assert isinstance(table, Table)
    assert table.rows[0][1:] == ["0.504", "0.7", "–", "–", "–", "0.5", "0.1"]


def prose(report: Report) -> str:
    return "\n".join(item for item in all_items(report) if isinstance(item, str))


def test_the_parts_of_a_sides_time_sum_to_all_of_it(tmp_path: Path) -> None:
    arm = arm_of(tmp_path / "run", steps({}))
    trainer = mean_shares(arm, trainer_shares)
    engine = mean_shares(arm, engine_shares)
    assert sum(trainer.values()) == pytest.approx(1)
    assert sum(engine.values()) == pytest.approx(1)
    assert trainer["waits: a late group has to come first"] == pytest.approx(0.4)
    assert trainer[UNEXPLAINED] == pytest.approx(0.075)
    assert engine[UNEXPLAINED] == pytest.approx(0.04)


def test_tokens_that_are_not_accounted_for_are_said(tmp_path: Path) -> None:
    sound = arm_of(tmp_path / "sound", steps({}))
    assert unaccounted(sound.runs[0]) == 0
    arm_of(tmp_path / "leaking", steps({"audit/tokens_in_flight": 293.0}))
    assert "seed 0: 7 generated tokens are not accounted for" in prose(build_report([tmp_path / "leaking"]))


GOOD = {"idle/trainer": 0.05, "idle/engine": 0.05, "wait/groups_s": 0.1, "wait/bound_s": 0.0, "wait/gate_s": 0.0}
GOOD |= {"time/train_s": 1.7}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"wait/groups_s": 1.0, "time/train_s": 0.8}, "generation is the bottleneck: the trainer waits 50%"),
        ({"idle/engine": 0.6, "wait/gate_s": 1.0}, "training is the bottleneck"),
        ({"idle/engine": 0.3, "sync/paused_s": 0.5}, "swaps pause the engines for 25% of their time"),
        ({"wait/groups_s": 1.0, "idle/engine": 0.5}, "a larger one lets more of both happen at once"),
        ({"wait/bound_s": 1.0, "time/train_s": 0.7}, "late groups hold the trainer up for 50%"),
        ({"groups/equal_rewards": 0.7}, "70% of groups have equal rewards"),
        ({"truncated": 0.3}, "30% of answers are cut off"),
        (
            {"reward/trained_mean": 0.0, "reward/trained_std": 0.0, "wait/bound_s": 1.0, "time/train_s": 0.7},
            "each step had equal rewards, 0, and nothing to learn from: see by `arl samples RUN --step 1`",
        ),
    ],
)
def test_advice_follows_from_the_numbers_and_names_them(tmp_path: Path, changed: Line, said: str) -> None:
    (line,) = advice(arm_of(tmp_path / "run", steps(GOOD | changed)))
    assert said in line


def test_advice_begins_with_what_has_left_the_range_of_the_beginning(tmp_path: Path) -> None:
    sizes = [0.9] * 6 + [0.1] * 4
    lines = [
        line | {"behavior_weight/effective_sample_size": size} for line, size in zip(steps({}, 10), sizes, strict=True)
    ]
    first, *_ = advice(arm_of(tmp_path / "run", lines))
    assert first.startswith("seed 0, step 9: behavior_weight/effective_sample_size is 0.1, and was 0.9")
