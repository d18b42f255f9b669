"""The cosines between gradients, and that measuring them changes nothing."""

from pathlib import Path

import pytest
import torch

from arl.metrics.names import number
from arl.train.micro_batch import MicroBatch
from arl.train.packing import Shard
from tests.train.one_rank import gradient_of, learner, shard_of
from tests.train.synthetic import batch

pytestmark = pytest.mark.usefixtures("alone")


def shard(version: int, minibatches: int = 2) -> Shard[MicroBatch]:
    return shard_of(batch(version, groups=8, size=4, seed=version), minibatches, capacity=200)


def flat(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def test_the_cosine_to_the_previous_updates_is_that_of_the_gradient_and_adams_decayed_mean(tiny: Path) -> None:
    trained = learner(tiny, minibatches=1)
    first, second = shard(4, 1), shard(5, 1)
    assert "grad_cosine/previous" not in trained.step(first)  # there is no earlier gradient
    mean = torch.cat([trained.policy._optimizer.state[p]["exp_avg"].flatten() for p in trained.policy._local.values()])
    _, gradient = gradient_of(trained, second.minibatches[0])
    expected = torch.cosine_similarity(flat(gradient).double(), mean.double(), dim=0)
    assert number(trained.step(second), "grad_cosine/previous") == pytest.approx(expected.item(), abs=1e-5)


def test_measuring_the_halves_leaves_weights_optimizer_and_metrics_as_they_are_to_the_bit(tiny: Path) -> None:
    plain, measured = learner(tiny), learner(tiny, halves_every=2)
    for version in range(4, 8):
        ours, theirs = plain.step(shard(version)), measured.step(shard(version))
        is_measured = (version + 1) % 2 == 0
        assert ("grad_cosine/stale_fresh" in theirs) == is_measured
        assert ("time/halves_s" in theirs) == is_measured
        timed = {name for name in theirs if name.startswith(("time/", "hardware/"))}
        assert {n: ours[n] for n in ours.keys() - timed} == {
            n: theirs[n] for n in theirs.keys() - timed - {"grad_cosine/stale_fresh"}
        }
    a, b = plain.policy.training_state(), measured.policy.training_state()
    for one, other in ((a.weights, b.weights), (a.optimizer, b.optimizer)):
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
