"""The learning rate of each update."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Train
from arl.train.optimizer import schedule_of


def rates(train: Train, *updates: int) -> list[float]:
    schedule = schedule_of(train)
    return [schedule.rate(update) for update in updates]


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
