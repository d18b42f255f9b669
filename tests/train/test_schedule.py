"""The learning rate of each update."""

from typing import Any

import pytest

from arl.config.recipe import Train
from arl.train.optimizer import schedule_of


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"ramp_steps": 2, "decay_to": 0.2}, [0.5, 1.0, 0.8, 0.6, 0.4, 0.2]),
        ({"decay_to": 0.0, "decay": "cosine"}, [1.0, 0.904508, 0.654508, 0.345492, 0.095492, 0.0]),
        ({"ramp_steps": 8}, [0.125, 0.25, 0.375, 0.5, 0.625, 0.75]),
    ],
)
def test_a_ramp_reaches_the_peak_and_the_decay_starts_from_there(settings: dict[str, Any], rates: list[float]) -> None:
    schedule = schedule_of(Train(learning_rate=1.0, steps=3, minibatches=2, **settings))
    assert [schedule.rate(update) for update in range(6)] == pytest.approx(rates, abs=1e-6)
