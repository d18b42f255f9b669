"""What a status says of a run's speed and evaluations."""

import pytest

from arl.config.train_section import Train
from arl.metrics.names import Record
from arl.metrics.recorder import RunRecords
from arl.run.status_writer import longest_waits, recent_speed, seconds_left


def step(number: int, seconds: float, waits: float) -> Record:
    return {
        "step": number,
        "policy_version": number,
        "time/step_s": seconds,
        "wait/groups_s": waits,
        "wait/bound_s": 0.0,
        "wait/device_s": 0.0,
        "wait/gate_s": 0.5,
        "idle/engine": 0.25,
        "tokens/generated": 100,
        "tokens/trained": 80,
    }


def measured(version: int, accuracy: float) -> Record:
    return {"step": version, "policy_version": version, "eval/held_out/accuracy": accuracy}


def test_speed_is_a_mean_over_the_last_ten_steps_weighted_by_their_time() -> None:
    records = [
        step(0, 1000.0, 900.0),
        *(step(1 + i, 1.0, 0.5) for i in range(9)),
        measured(9, 0.5),
        step(10, 11.0, 1.5),
    ]
    speed = recent_speed(records)
    assert speed is not None
    assert speed.steps == 10
    assert speed.step_seconds == pytest.approx(2.0)
    assert speed.generated_per_s == pytest.approx(50.0)
    assert speed.trained_per_s == pytest.approx(40.0)
    assert speed.trainer_waits == pytest.approx({"groups": 0.3, "bound": 0.0, "device": 0.0})
    assert speed.engine_idle == pytest.approx(0.25)
    assert speed.gate == pytest.approx(0.25)


def test_waits_of_loops_come_first_and_those_of_requests_are_shown_once_they_take_long() -> None:
    waits = [("engine client", f"request {i}", float(i)) for i in range(30)]
    shown = longest_waits([*waits, ("trainer", "4 groups", 0.5), ("admission", "room", 2.0)])
    assert [(wait.who, wait.seconds) for wait in shown[:3]] == [
        ("admission", 2.0),
        ("trainer", 0.5),
        ("engine client", 29.0),
    ]
    assert len(shown) == 3


@pytest.mark.parametrize(("tokens", "left"), [(None, 57), (1000, 10), (240, 0)])
def test_the_time_left_is_that_of_the_steps_until_the_first_limit(tokens: int | None, left: int) -> None:
    train = Train(steps=60, tokens=tokens)
    records = [step(version, 2.0, 0.0) for version in (1, 2, 3)]
    speed = recent_speed(records)
    assert speed is not None
    assert seconds_left(train, 3, RunRecords(records).tokens_trained, speed) == pytest.approx(2.0 * left)
