"""The formula for the mean age agrees with counting versions, and keeps within the bound."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.report.arms import make_arms
from arl.report.mean_age import Flow, mean_age_table, predicted_mean_age
from arl.report.read_runs import load_runs
from tests.report.synthetic_runs import write_run

SAMPLES = 1000  # places of a token between two loads

seconds = st.floats(0.0, 50.0)
steps = st.floats(0.1, 10.0)
shares = st.floats(0.0, 1.0)


def flow(
    *,
    step: float = 1.0,
    generation: float = 0.0,
    queue: float = 0.0,
    behind: float = 0.0,
    utilization: float = 1.0,
    most_running: float = math.inf,
    bound: int | None = None,
) -> Flow:
    return Flow(
        problems_per_step=32,
        step_seconds=step,
        generation_seconds=generation,
        queue_seconds=queue,
        versions_behind=behind,
        utilization=utilization,
        most_running=most_running,
        bound=bound,
    )


def counted_age(*, before: float, step: float, swap: float, every: int, utilization: float) -> int:
    """Count the versions between a token sampled `before` seconds ahead of step v's start and v, at v = 0."""
    start = (1 - utilization) * step  # version 0 exists at time 0, and the trainer waits for its batch
    sampled = start - before
    newest = math.floor((sampled - swap) / step)  # version k can be loaded at k · step + swap
    served = newest // every * every
    return -served


@given(seconds, steps, seconds, shares, st.integers(1, 6))
def test_the_formula_is_the_mean_of_counted_ages_over_all_places_between_two_loads(
    queue: float, step: float, swap: float, utilization: float, every: int
) -> None:
    queue += every * step  # a token is sampled before its step starts, wherever it lies between two loads
    ages = []
    for i in range(SAMPLES):
        before = queue + every * step * ((i + 0.5) / SAMPLES - 0.5)
        ages.append(counted_age(before=before, step=step, swap=swap, every=every, utilization=utilization))
    behind = swap / step + (every - 1) / 2
    predicted = predicted_mean_age(flow(step=step, queue=queue, behind=behind, utilization=utilization))
    assert predicted == pytest.approx(sum(ages) / SAMPLES, abs=4 * every / SAMPLES)


@given(seconds, seconds, steps, seconds, shares, st.integers(0, 16))
def test_a_predicted_age_is_between_zero_and_the_bound(
    queue: float, generation: float, step: float, behind: float, utilization: float, bound: int
) -> None:
    made = flow(step=step, generation=generation, queue=queue, behind=behind, utilization=utilization, bound=bound)
    assert 0 <= predicted_mean_age(made) <= bound


def test_a_token_of_a_running_group_waits_half_the_group_s_time() -> None:
    assert predicted_mean_age(flow(generation=4.0)) == pytest.approx(2.5)


def test_groups_beyond_the_slots_have_no_tokens_yet() -> None:
    assert predicted_mean_age(flow(generation=4.0, most_running=32)) == pytest.approx(1.0)


def test_a_report_shows_the_formula_beside_the_measured_age(tmp_path: Path) -> None:
    write_run(tmp_path / "run", ["rollout.staleness=3"])
    table = mean_age_table(make_arms(load_runs([tmp_path]).runs).arms)
    assert table is not None
    # T = 2 s: Q/P = 4/2, C/2P = 1/4, B = 0.1, u = 0.5
    assert [row[1:] for row in table.rows] == [["3.00", "2.35", "-0.65"]]


def test_a_run_that_lacks_what_the_formula_needs_is_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "run", is_old=True)
    assert mean_age_table(make_arms(load_runs([tmp_path]).runs).arms) is None
