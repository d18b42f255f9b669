"""The learning rate of each update."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Train
from arl.train.schedule import schedule_of
from arl.train.sft import PairsJob, schedule_of_pairs


def rates(train: Train, *updates: int) -> list[float]:
    schedule = schedule_of(train)
    return [schedule.rate(update) for update in updates]


def test_the_learning_rate_falls_along_a_cosine_to_its_share() -> None:
    train = Train(learning_rate=0.1, steps=5, minibatches=1, decay_to=0.5, decay="cosine")
    assert rates(train, 0, 1, 2, 4) == pytest.approx([0.1, 0.0926777, 0.075, 0.05])


@given(
    st.integers(0, 30), st.integers(1, 20), st.integers(1, 4), st.floats(0, 1), st.sampled_from(["linear", "cosine"])
)
def test_a_ramp_reaches_the_peak_and_the_decay_starts_from_there(
    ramp: int, steps: int, minibatches: int, decay_to: float, decay: Literal["linear", "cosine"]
) -> None:
    train = Train(
        learning_rate=0.1,
        ramp_steps=ramp,
        steps=steps,
        minibatches=minibatches,
        decay_to=decay_to,
        decay=decay,
    )
    updates = steps * minibatches
    found = rates(train, *range(updates))
    assert found == rates(train, *range(updates)), "the rate depends on the update alone"
    at_peak = max(0, ramp - 1)
    rising, falling = found[: at_peak + 1], found[at_peak:]
    assert rising == pytest.approx([0.1 * (update + 1) / max(1, ramp) for update in range(len(rising))])
    if len(falling) > 1:
        assert falling[0] == pytest.approx(0.1)
        assert falling[-1] == pytest.approx(0.1 * decay_to)
        assert falling == sorted(falling, reverse=True)


def test_fine_tuning_ramps_to_the_peak_then_falls_to_a_tenth_at_its_last_step() -> None:
    job = PairsJob(model="m", data="d", output="o", steps=151, learning_rate=1.0)
    schedule = schedule_of_pairs(job)
    assert [schedule.rate(step) for step in (0, 24, 49, 99, 150)] == pytest.approx(
        [0.02, 0.5, 1.0, 0.5545, 0.1], abs=1e-4
    )
