"""A run is told once when its training leaves the range of its beginning, and never before that."""

from collections.abc import Sequence

import pytest

from arl.metrics.alarms import BEGINNING, IN_A_ROW, KL, Alarms

ESS = "behavior_weight/effective_sample_size"
COSINE = "grad_cosine/previous"
Value = float | Sequence[float | None]
CALM: dict[str, list[float]] = {
    ESS: [1.0, 0.97, 0.91, 0.9, 0.94, 0.96],
    COSINE: [-0.14, 0.14, 0.18, 0.31, 0.37, 0.19],
    KL: [0.08, 0.09, 0.04, 0.03, 0.01, 0.01],
}


def at_age_2(name: str, value: float) -> Value:
    return [None, None, value, None, None, None, None] if name == KL else value


def alarms_of(values: dict[str, list[float]]) -> list[str]:
    watch = Alarms()
    for step, row in enumerate(zip(*values.values(), strict=True), start=1):
        record: dict[str, Value] = {name: at_age_2(name, value) for name, value in zip(values, row, strict=True)}
        watch.add({"step": float(step)} | record)
    return list(watch.said.values())


@pytest.mark.parametrize(
    ("name", "late", "said"),
    [
        (ESS, 0.05, f"{ESS} is 0.05, and was 0.95 in the run's beginning: lower rollout.staleness"),
        (COSINE, 0.9, f"{COSINE} is 0.9, and was 0.185 in the run's beginning: lower rollout.staleness"),
        (KL, 2.0, f"{KL} at age 2 is 2, and was 0.035 in the run's beginning: lower train.learning_rate"),
    ],
)
def test_a_metric_that_stays_out_of_its_first_range_is_said_once_with_the_field_to_change(
    name: str, late: float, said: str
) -> None:
    calm = {metric: values * 3 for metric, values in CALM.items()}
    assert alarms_of(calm) == []
    bursts = calm | {name: [*CALM[name], *[late, late, CALM[name][-1]] * (2 * BEGINNING // IN_A_ROW)]}
    assert alarms_of(bursts) == []
    (line,) = alarms_of(calm | {name: CALM[name] + [late] * 2 * BEGINNING})
    assert line.startswith(f"step {BEGINNING + IN_A_ROW}: {said}")


def test_a_run_that_is_broken_from_its_second_step_on_is_told_at_the_fourth() -> None:
    (line,) = alarms_of({ESS: [1.0, 0.12, 0.02, 0.02, 0.14]})
    assert line.startswith(f"step 4: {ESS} is 0.02: lower")


def test_what_improves_raises_no_alarm() -> None:
    late = {ESS: 1.0, COSINE: -0.9, KL: 0.0}
    assert alarms_of({name: values + [late[name]] * 9 for name, values in CALM.items()}) == []
