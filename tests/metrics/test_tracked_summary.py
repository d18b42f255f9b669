"""The summary that trackers are given says what was measured, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.run_section import Target
from arl.metrics.names import Record
from arl.metrics.tracked_summary import TrackedSummary, VersionAxes
from tests.metrics.tracked_runs import evaluation_record, step_record


def summary_of(records: list[Record], target: Target | None = None) -> dict[str, float]:
    axes = VersionAxes()
    summary = TrackedSummary(target)
    values: dict[str, float] = {}
    for record in records:
        values |= summary.add(record, axes.place(record))
    return values


def test_a_target_costs_what_the_first_version_that_reached_it_had_cost_and_not_what_measuring_took() -> None:
    steps = [step_record(step) for step in range(1, 7)]
    late = [evaluation_record(0, 0.2), *steps, evaluation_record(4, 0.91, late=50.0), evaluation_record(2, 0.9)]
    values = summary_of(late, Target(accuracy=0.9))
    assert {name: value for name, value in values.items() if name.startswith("target/")} == {
        "target/step": 2,
        "target/tokens": 200,
        "target/time_s": 4.0,
    }


def test_a_target_that_is_not_reached_is_absent() -> None:
    records = [evaluation_record(0, 0.2), step_record(1), evaluation_record(1, 0.89)]
    assert not any(name.startswith("target/") for name in summary_of(records, Target(accuracy=0.9)))
    other = Target(suite="hard", accuracy=0.1)
    assert not any(name.startswith("target/") for name in summary_of(records, other))


def test_the_base_model_may_reach_a_target_for_nothing() -> None:
    values = summary_of([evaluation_record(0, 0.95)], Target(accuracy=0.9))
    assert (values["target/step"], values["target/tokens"], values["target/time_s"]) == (0, 0, 0)


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75]), min_size=1, max_size=12), st.randoms())
def test_best_and_final_do_not_depend_on_the_order_in_which_evaluations_come(
    scores: list[float], order: object
) -> None:
    records = [evaluation_record(version, score) for version, score in enumerate(scores)]
    order.shuffle(records)  # type: ignore[attr-defined]
    values = summary_of(records)
    best = max(scores)
    assert values == {
        "best/held_out/accuracy": best,
        "best/held_out/step": scores.index(best),
        "final/held_out/accuracy": scores[-1],
        "final/held_out/step": len(scores) - 1,
    }


def test_throughput_age_and_fates_are_of_the_whole_run() -> None:
    values = summary_of([step_record(step) for step in range(1, 7)])
    assert values["final/tokens_per_s"] == pytest.approx(600 / 12)
    assert values["final/token_age_mean"] == pytest.approx((15 + 2 * 5) / 100)
    assert (values["final/groups_trained"], values["final/groups_failed"]) == (6 * 4, 2)
    assert not any(name.startswith(("best/", "final/held_out")) for name in values)


def test_an_evaluation_is_placed_where_its_version_was_made() -> None:
    axes = VersionAxes()
    axes.place(step_record(1))
    axes.place(step_record(2))
    place = axes.place(evaluation_record(1, 0.5, late=90.0))
    assert place == {"axis/step": 1, "axis/tokens": 100, "axis/time_s": 2.0}
    assert axes.place(evaluation_record(9, 0.5)) == {"axis/step": 9}
