"""An update that is not finite is skipped, and several in a row end the run."""

from pathlib import Path

import numpy as np
import pytest

from arl.errors import TrainerError
from arl.train.algorithms.ppo import PPO
from arl.train.packing import Shard
from arl.types import Batch
from tests.train.one_rank import assert_same_weights, learner, shard_of, weights
from tests.train.synthetic import batch

pytestmark = pytest.mark.usefixtures("alone")


def poisoned(version: int, groups: int = 1, value: float = np.nan) -> Batch:
    """One trajectory of the first `groups` has no usable logprob."""
    given = batch(version, groups=4, size=4)
    for group in given.groups[:groups]:
        bad = next(t for t in group.trajectories if any(o.reward != t.reward for o in group.trajectories))
        bad.behavior_logprobs[bad.loss_mask] = value
    return given


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_an_update_that_is_not_finite_leaves_weights_moments_and_means_alone(tiny: Path, value: float) -> None:
    """The first of two minibatches is poisoned; the second trains as if it had been alone."""
    trained, clean = learner(tiny, PPO()), learner(tiny, PPO())
    shard = shard_of(poisoned(4, value=value))
    metrics = trained.step(shard)
    assert metrics["train/skipped_updates"] == 1
    assert all(np.isfinite(value) for value in metrics.values() if not isinstance(value, list))
    clean._updates += 1
    alone = clean.step(Shard(4, shard.minibatches[1:]))
    assert metrics["loss"] == pytest.approx(alone["loss"], rel=1e-6)
    assert metrics["entropy"] == pytest.approx(alone["entropy"], rel=1e-6)
    assert_same_weights(weights(trained), weights(clean), 0.0)


def test_three_updates_in_a_row_that_are_not_finite_end_the_run(tiny: Path) -> None:
    trained = learner(tiny)
    before = weights(trained)
    assert trained.step(shard_of(poisoned(4, groups=4)))["train/skipped_updates"] == 2
    with pytest.raises(TrainerError, match=r"the loss is nan .* version 5, and 3 updates in a row"):
        trained.step(shard_of(poisoned(5, groups=4)))
    assert_same_weights(before, weights(trained), 0.0)
