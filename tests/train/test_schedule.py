"""The learning rate of each update."""

import pytest

from arl.config.recipe import Train
from arl.train.schedule import schedule_of


def rates(train: Train, *updates: int) -> list[float]:
    schedule = schedule_of(train)
    return [schedule.rate(update) for update in updates]


def test_the_learning_rate_falls_linearly_to_its_share() -> None:
    train = Train(learning_rate=0.1, steps=3, minibatches=2, decay_to=0.5)
    assert rates(train, 0, 5, 99) == pytest.approx([0.1, 0.05, 0.05])


def test_the_learning_rate_falls_along_a_cosine_to_its_share() -> None:
    train = Train(learning_rate=0.1, steps=5, minibatches=1, decay_to=0.5, decay="cosine")
    assert rates(train, 0, 1, 2, 4) == pytest.approx([0.1, 0.0926777, 0.075, 0.05])
