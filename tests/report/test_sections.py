"""Time, ages and tokens are accounted for: what is not explained is a part of its own, what is missing is said."""

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arl.report.advice import NOTHING, advice
from arl.report.arms import Arm, make_arms
from arl.report.assemble import Report, build_report
from arl.report.ledger_section import unaccounted
from arl.report.numbers_json import numbers_of
from arl.report.parts import Prose
from arl.report.read_runs import load_runs
from arl.report.speed import mean_shares
from arl.report.speed_numbers import CAUSE_UNKNOWN, IDLE, UNEXPLAINED, engine_shares, trainer_shares
from arl.report.staleness_section import age_shares, by_age
from tests.report.synthetic_runs import Line, new_step, old_step, write_metrics, write_recipe, write_run, write_sweep
from tests.report.test_comparison import figures, table


def arm_of(directory: Path, lines: list[Line], *settings: str) -> Arm:
    """Write one run with these records, and return its arm."""
    directory.mkdir()
    write_recipe(directory, settings, seed=0)
    write_metrics(directory, lines)
    (arm,) = make_arms(load_runs([directory]).runs).arms
    return arm


def steps(changed: Line, count: int = 4, age: int = 2) -> list[Line]:
    return [old_step(step, age) | new_step(step, age) | changed for step in range(1, count + 1)]


def prose(report: Report, id: str) -> str:
    items = [item for section in report.sections for item in section.all_items]
    (found,) = [item for item in items if isinstance(item, Prose) and item.id == id]
    return "\n".join(found.lines)


def test_the_parts_of_a_sides_time_sum_to_all_of_it(tmp_path: Path) -> None:
    arm = arm_of(tmp_path / "run", steps({}))
    trainer = mean_shares(arm, trainer_shares)
    engine = mean_shares(arm, engine_shares)
    assert sum(trainer.values()) == pytest.approx(1)
    assert sum(engine.values()) == pytest.approx(1)
    assert trainer["waits: a late group has to come first"] == pytest.approx(0.4)
    assert trainer[UNEXPLAINED] == pytest.approx(0.075)
    assert engine[UNEXPLAINED] == pytest.approx(0.04)


def test_waits_whose_cause_was_not_recorded_are_shown_as_such_and_said(tmp_path: Path) -> None:
    write_run(tmp_path / "run", is_old=True)
    report = build_report([tmp_path])
    trainer = mean_shares(report.arms[0], trainer_shares)
    engine = mean_shares(report.arms[0], engine_shares)
    assert trainer[CAUSE_UNKNOWN] == pytest.approx(0.5)
    assert UNEXPLAINED not in engine
    assert engine[IDLE] == pytest.approx(0.2)
    assert "wait/groups_s" in prose(report, "speed-missing")
    assert "wait/bound_s" not in table(report, "trainer-shares").header


def test_steps_that_were_not_recorded_count_in_no_time(tmp_path: Path) -> None:
    arm = arm_of(tmp_path / "run", [old_step(step, 0) for step in (3, 4, 9, 10)])
    assert sum(mean_shares(arm, trainer_shares).values()) == pytest.approx(1)
    assert mean_shares(arm, trainer_shares)["trains"] == pytest.approx(0.3)


def test_ages_by_bucket_are_weighted_by_tokens_and_absent_where_no_token_is(tmp_path: Path) -> None:
    first = old_step(1, 0) | {"by_age/tokens": [10, 30, *[0] * 5], "by_age/ratio": [1.0, 2.0, *[None] * 5]}
    second = old_step(2, 0) | {"by_age/tokens": [30, 0, *[0] * 5], "by_age/ratio": [2.0, *[None] * 6]}
    arm = arm_of(tmp_path / "run", [first, second])
    values = by_age(arm, "by_age/ratio")
    assert values[:2].tolist() == [1.75, 2.0]
    assert np.isnan(values[2:]).all()
    assert np.isnan(by_age(arm, "by_age/never")).all()


def test_heat_maps_hold_shares_that_sum_to_one_and_nothing_where_a_step_was_not_recorded(tmp_path: Path) -> None:
    lines = [old_step(1, 0), old_step(2, 1), old_step(4, 1) | {"token_age/histogram": [250, 750]}]
    arm = arm_of(tmp_path / "run", lines)
    places, shares = age_shares(arm, "token_age/histogram")
    assert places.tolist() == [1, 2, 3, 4]
    assert shares[:, [0, 1, 3]].T.tolist() == [[1, 0], [0, 1], [0.25, 0.75]]
    assert np.isnan(shares[:, 2]).all()
    map_ = figures(build_report([tmp_path]))["token-age-0"].traces[0]
    assert [row[2] for row in map_["z"]] == [None, None]


def test_what_age_0_says_is_set_apart_from_lag(tmp_path: Path) -> None:
    arm_of(tmp_path / "run", steps({}))
    said = prose(build_report([tmp_path]), "staleness-said")
    assert "KL(behavior‖proximal) is 0.001 nats at age 0 and 0.02 at age 2." in said


def test_an_objective_without_behavior_weights_has_a_dash_and_no_figure(tmp_path: Path) -> None:
    lines = steps({})
    for line in lines:
        del line["behavior_weight/effective_sample_size"]
    arm_of(tmp_path / "run", lines, "objective.kind=ppo")
    report = build_report([tmp_path])
    column = table(report, "staleness-table").header.index("effective sample")
    assert table(report, "staleness-table").rows[0][column] == "–"
    assert not [id for id in figures(report) if id.startswith("effective-sample-size")]


def test_tokens_that_are_not_accounted_for_are_said(tmp_path: Path) -> None:
    sound = arm_of(tmp_path / "sound", steps({}))
    assert unaccounted(sound.runs[0]) == 0
    arm_of(tmp_path / "leaking", steps({"audit/tokens_in_flight": 293.0}))
    assert "7 generated tokens are not accounted for" in prose(build_report([tmp_path / "leaking"]), "ledger-said")


def test_selection_is_said_when_trained_groups_differ_from_generated_ones(tmp_path: Path) -> None:
    arm_of(tmp_path / "even", steps({"audit/reward_trained": 0.4}))
    assert "No arm trained groups that differ" in prose(build_report([tmp_path / "even"]), "ledger-said")
    arm_of(tmp_path / "short", steps({"audit/reward_trained": 0.4, "audit/length_trained": 80.0}))
    assert "the mean length of trained groups is 20% below" in prose(build_report([tmp_path / "short"]), "ledger-said")


GOOD = {"idle/trainer": 0.05, "idle/engine": 0.05, "wait/groups_s": 0.1, "wait/bound_s": 0.0, "wait/gate_s": 0.0}
GOOD |= {"time/train_s": 1.7}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"wait/groups_s": 1.0, "time/train_s": 0.8}, "generation is the bottleneck: the trainer waits 50%"),
        ({"idle/engine": 0.6, "wait/gate_s": 1.0}, "training is the bottleneck"),
        ({"wait/bound_s": 1.0, "time/train_s": 0.7}, "late groups hold the trainer up for 50%"),
        ({"wait/groups_s": 1.0, "idle/engine": 0.5, "wait/gate_s": 0.02}, "a larger one changes little"),
        ({"time/train_s": 0.5}, "of the trainer's time is unexplained"),
        ({"sync/paused_s": 0.2}, "engines are paused for swaps 10%"),
        (
            {"sync/recomputed_tokens": 9000.0, "tokens/generated": 3000.0},
            "swaps had 3.0 tokens computed again for each",
        ),
        ({"queue_age/mean": 2.5}, "finished groups wait 2.5 versions"),
        ({"behavior_weight/effective_sample_size": 0.3}, "effective sample size of behavior weights is 30%"),
        ({"ratio/clip_fraction": 0.4}, "40% of tokens are clipped"),
        ({"groups/equal_rewards": 0.7}, "70% of groups have equal rewards"),
        ({"truncated": 0.3}, "30% of answers are cut off"),
    ],
)
def test_advice_follows_from_the_numbers_and_names_them(tmp_path: Path, changed: Line, said: str) -> None:
    (line,) = advice(arm_of(tmp_path / "run", steps(GOOD | changed)))
    assert said in line


@pytest.mark.parametrize(
    ("changed", "settings", "said"),
    [
        ({"groups/dropped": 4}, ["rollout.late=drop"], "that selects quick answers"),
        ({"groups/dropped": 4}, ["rollout.staleness=0", "rollout.tail_batching={}"], "a smaller oversample"),
        (
            {"wait/groups_s": 1.0, "idle/engine": 0.5},
            ["rollout.staleness=0", "rollout.tail_batching={}"],
            "keeps every step fresh",
        ),
        (
            {"wait/groups_s": 1.0, "idle/engine": 0.5},
            ["rollout.staleness=null", "rollout.max_groups=64"],
            "rollout.max_groups holds engines back",
        ),
        ({"wait/groups_s": 1.0, "idle/engine": 0.5}, ["rollout.staleness=0"], "1 or more lets both work at once"),
    ],
)
def test_advice_names_only_what_the_recipe_can_change(
    tmp_path: Path, changed: Line, settings: list[str], said: str
) -> None:
    (line,) = advice(arm_of(tmp_path / "run", steps(GOOD | changed), *settings))
    assert said in line


def test_a_run_that_nothing_is_wrong_with_is_left_alone(tmp_path: Path) -> None:
    arm_of(tmp_path / "run", steps(GOOD))
    assert NOTHING in prose(build_report([tmp_path]), "advice-said")


def test_every_figure_is_json_without_a_gap_drawn_as_zero_and_every_id_is_unique(tmp_path: Path) -> None:
    write_sweep(tmp_path, [0, 2], ["ppo", "decoupled_ppo"], seeds=2)
    report = build_report([tmp_path])
    assert b"NaN" not in msgspec.json.encode(report.sections)
    ids = [item.id for section in report.sections for item in section.all_items]
    assert len(ids) == len(set(ids))
    for figure in figures(report).values():
        assert figure.traces
        assert figure.caption


def test_no_share_of_the_time_is_minus_zero(tmp_path: Path) -> None:
    arm_of(tmp_path / "run", steps({"time/train_s": 0.7500001}))  # so that the parts overlap by next to nothing
    traces = figures(build_report([tmp_path]))["trainer-time"].traces
    (unexplained,) = [trace["x"] for trace in traces if trace["name"] == UNEXPLAINED]
    assert str(unexplained) == "[0.0]"


def test_a_heat_map_has_ticks_at_whole_ages_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ["rollout.staleness=0"])
    axis = figures(build_report([tmp_path]))["queue-age-0"].layout["yaxis"]
    assert (axis["tick0"], axis["dtick"]) == (0, 1)


SPECIAL: list[object] = [0, -1, 1e-300, 1e15, 1e16, 1e100, -1e100, 1e308, -1e308, 10**400, math.nan, math.inf, None]
SPECIAL += ["text", [], [1e100] * 7, [1e308, -1e308], [None], [-1, math.nan]]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_numbers_metrics_hold_a_report_is_made_of_them(tmp_path: Path, data: st.DataObject) -> None:
    runs = []
    for seed in (0, 1):
        run = tmp_path / f"seed-{seed}"
        run.mkdir(exist_ok=True)
        write_recipe(run, [], seed)
        first, *lines = steps({})
        for _ in range(data.draw(st.integers(1, 6))):
            line = data.draw(st.sampled_from(lines))
            name = data.draw(st.sampled_from(sorted(line)))
            for changed in data.draw(st.sampled_from([[line], lines])):
                changed[name] = data.draw(st.sampled_from(SPECIAL))
        write_metrics(run, [first, *lines])
        runs.append(run)
    json.loads(numbers_of(build_report(runs)), parse_constant=pytest.fail)


def test_a_step_far_from_the_others_is_a_column_of_its_own_behind_a_gap(tmp_path: Path) -> None:
    arm = arm_of(tmp_path / "run", [old_step(step, 1) for step in (1, 2, 10**15)])
    places, shares = age_shares(arm, "token_age/histogram")
    assert places.tolist() == [1, 2, 3, 10**15 - 1, 10**15]
    assert np.isnan(shares).all(axis=0).tolist() == [False, False, True, True, False]
