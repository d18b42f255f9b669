"""A step of one rank moves the policy as its objective says, however the batch is cut."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from arl.metrics.names import number
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.gspo import GSPO
from arl.train.algorithms.objective import Objective
from arl.train.algorithms.ppo import PPO
from arl.types import Batch
from tests.extending.my_objective import Reinforce as WithPenalty
from tests.train.one_rank import (
    assert_same_weights,
    learner,
    logprobs,
    on_policy,
    rewarded,
    shard_of,
    weights,
)
from tests.train.synthetic import batch, packed

pytestmark = pytest.mark.usefixtures("alone")


def test_a_few_steps_raise_the_probability_of_rewarded_trajectories(tiny: Path) -> None:
    trained = learner(tiny, learning_rate=1e-3)
    given = batch(4, groups=8, size=4)
    before = logprobs(trained, rewarded(given)).mean()
    for version in range(4, 8):
        trained.step(shard_of(on_policy(trained, batch(version, groups=8, size=4))))
    assert logprobs(trained, rewarded(given)).mean() > before + 0.05
    assert trained.version == 8


@pytest.mark.parametrize(
    "objective",
    [DecoupledPPO(), PPO(), GSPO(clip_low=0.2, clip_high=0.2), WithPenalty()],
    ids=lambda o: type(o).__name__,
)
def test_a_batch_without_any_loss_token_still_makes_a_version_and_leaves_the_weights(
    tiny: Path, objective: Objective
) -> None:
    """Such as one of an environment in which the policy never spoke, or in which every episode is masked."""
    trained = learner(tiny, objective)
    before = weights(trained)
    (shard,), report = packed(silent(batch(4, groups=4, size=2)), minibatches=2, objective=objective)
    metrics = trained.step(shard)
    assert metrics["loss"] == metrics["grad_norm"] == report["tokens/trained"] == 0.0
    assert report["advantage/zero_fraction"] == 1.0
    assert "entropy" not in metrics
    assert trained.version == 5
    assert_same_weights(before, weights(trained), 0.0)


def silent(given: Batch) -> Batch:
    """The same batch, in which no token is in the loss."""
    groups = []
    for group in given.groups:
        quiet = [msgspec.structs.replace(t, loss_mask=np.zeros_like(t.loss_mask)) for t in group.trajectories]
        groups.append(msgspec.structs.replace(group, trajectories=tuple(quiet)))
    return Batch(given.version, tuple(groups))


def test_the_second_minibatch_is_centered_on_the_weights_before_the_step(tiny: Path) -> None:
    """One update moves the policy; the proximal policy stays behind, so ratios leave 1 by as much as it moved."""
    given = on_policy(learner(tiny), batch(4, groups=4, size=4))
    moved = learner(tiny, learning_rate=1e-2).step(shard_of(given))
    unmoved = learner(tiny, learning_rate=1e-9).step(shard_of(given))
    assert number(moved, "ratio/max") > 1.05
    assert unmoved["ratio/max"] == pytest.approx(1.0, abs=1e-4)
    assert moved["behavior_weight/mean"] == pytest.approx(1.0, abs=1e-5)  # proximal is the sampling policy, not current
