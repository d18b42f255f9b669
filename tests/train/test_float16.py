"""Training in float16 takes the steps of float32, and an overflow costs an update, not the run."""

from pathlib import Path

import pytest
import torch

from arl.train.learner import MAX_SKIPPED
from arl.train.optimizer import FIRST
from arl.train.packing import MicroBatch, Shard
from tests.train.one_rank import learner, shard_of, weights
from tests.train.synthetic import batch

pytestmark = pytest.mark.usefixtures("alone")


def shard(version: int = 4) -> Shard[MicroBatch]:
    return shard_of(batch(version, groups=8, size=4, seed=version), capacity=200)


def test_float16_takes_nearly_the_step_of_float32(tiny: Path) -> None:
    exact = learner(tiny, learning_rate=1e-3, eps=1e-3)
    half = learner(tiny, dtype="float16", learning_rate=1e-3, eps=1e-3)
    for version in (4, 5):
        expected = exact.step(shard(version))
        metrics = half.step(shard(version))
        assert metrics["train/skipped_updates"] == 0
        for name in ("loss", "grad_norm", "entropy", "kl/behavior_current"):
            assert metrics[name] == pytest.approx(expected[name], rel=0.01, abs=1e-3), name
    assert metrics["train/loss_scale"] == FIRST
    assert "train/loss_scale" not in expected
    assert {w.dtype for w in half.snapshot().values()} == {torch.float16}
    theirs = weights(exact)
    for name, weight in weights(half).items():
        assert (weight - theirs[name]).norm() <= 0.01 * theirs[name].norm(), name


def test_an_overflow_skips_updates_and_halves_the_scale_until_it_fits(tiny: Path) -> None:
    half = learner(tiny, dtype="float16")
    half.policy.loss_scale.value = 2.0**40
    skipped = 0.0
    for version in range(4, 40):
        metrics = half.step(shard(version))
        skipped += float(metrics["train/skipped_updates"])  # type: ignore[arg-type]
        if not metrics["train/skipped_updates"]:
            break
    assert skipped > MAX_SKIPPED, "a large scale is no reason to give up"
    assert half.policy.loss_scale.value == 2.0 ** (40 - skipped)
