"""Training in float16 takes the steps of float32, and an overflow costs an update, not the run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arl.config.recipe import Train
from arl.errors import TrainerError
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.learner import MOST_SKIPPED, Learner
from arl.train.loss_scale import FIRST, GROWTH_EVERY, LossScale
from arl.train.shard import Shard
from arl.types import Batch
from tests.train.synthetic import batch, packed

pytestmark = pytest.mark.usefixtures("alone")


def learner(model: Path, **train: Any) -> Learner:
    settings = {"minibatches": 2, "dtype": "float16", "learning_rate": 1e-3, "eps": 1e-3} | train
    return Learner(model, Train.model_validate(settings), DecoupledPPO(), version=4)


def shard(version: int = 4) -> Shard:
    (made,), _ = packed(batch(version, groups=8, size=4, seed=version), 2, 200)
    return made


def with_nan(given: Batch) -> Batch:
    for group in given.groups:
        for trajectory in group.trajectories:
            trajectory.behavior_logprobs[trajectory.loss_mask] = np.nan
    return given


def test_float16_takes_nearly_the_step_of_float32(tiny: Path) -> None:
    exact = learner(tiny, dtype="float32")
    half = learner(tiny)
    for version in (4, 5):
        expected = exact.step(shard(version))
        metrics = half.step(shard(version))
        assert metrics["train/skipped_updates"] == 0
        for name in ("loss", "grad_norm", "entropy", "kl/behavior_current"):
            assert metrics[name] == pytest.approx(expected[name], rel=0.01, abs=1e-3), name
    assert metrics["train/loss_scale"] == FIRST
    assert "train/loss_scale" not in expected
    assert {w.dtype for w in half.snapshot().values()} == {torch.float16}
    theirs = exact.sharded.full_state(torch.float32)
    for name, weight in half.sharded.full_state(torch.float32).items():
        assert (weight - theirs[name]).norm() <= 0.01 * theirs[name].norm(), name


def test_a_float16_run_ends_nearer_that_of_float32_than_a_bfloat16_run_does(tiny: Path) -> None:
    runs = {dtype: learner(tiny, dtype=dtype) for dtype in ("float32", "float16", "bfloat16")}
    rewarded = []
    for run in runs.values():
        for version in range(4, 12):
            metrics = run.step(shard(version))
        rewarded.append(metrics["loss"])
    assert rewarded[1] == pytest.approx(rewarded[0], rel=0.02)
    truth = runs["float32"].sharded.full_state(torch.float32)
    distances = {}
    for dtype in ("float16", "bfloat16"):
        state = runs[dtype].sharded.full_state(torch.float32)
        squared = [(state[name] - truth[name]).square().sum() for name in truth]
        distances[dtype] = float(torch.stack(squared).sum().sqrt())
    assert distances["float16"] < 0.5 * distances["bfloat16"], distances


def test_an_overflow_skips_updates_and_halves_the_scale_until_it_fits(tiny: Path) -> None:
    half = learner(tiny)
    half.sharded.loss_scale.value = 2.0**40
    skipped = 0.0
    for version in range(4, 40):
        metrics = half.step(shard(version))
        skipped += float(metrics["train/skipped_updates"])  # type: ignore[arg-type]
        if not metrics["train/skipped_updates"]:
            break
    assert skipped > MOST_SKIPPED, "a large scale is no reason to give up"
    assert half.sharded.loss_scale.value == 2.0 ** (40 - skipped)


def test_a_loss_that_is_not_finite_says_nothing_of_the_scale(tiny: Path) -> None:
    """No scale cures it, and it is no good update either."""
    half = learner(tiny)
    half.sharded.loss_scale.num_good = GROWTH_EVERY - 1
    (made,), _ = packed(with_nan(batch(4, groups=8, size=4, seed=4)), 2, 200)
    assert half.step(made)["train/skipped_updates"] == 2
    assert half.sharded.loss_scale == LossScale(FIRST, is_dynamic=True, num_good=GROWTH_EVERY - 1)


def test_overflows_at_the_least_scale_end_the_run(tiny: Path, tmp_path: Path) -> None:
    half = learner(tiny)
    half._evidence = tmp_path
    half.sharded.loss_scale.value = 1.0
    with torch.no_grad():
        half.sharded.model.lm_head.weight.mul_(1e30)
    half.step(shard(4))
    with pytest.raises(TrainerError, match="3 updates in a row"):
        half.step(shard(5))


def test_a_checkpoint_keeps_the_scale(tiny: Path, tmp_path: Path) -> None:
    half = learner(tiny)
    half.sharded.loss_scale = LossScale(1024.0, is_dynamic=True, num_good=7)
    half.sharded.write(half.sharded.training_state(), tmp_path / "saved", tokenizer_path=tiny)
    train = Train(dtype="float16", minibatches=2)
    resumed = Learner(tmp_path / "saved", train, DecoupledPPO(), version=4, resumed=True)
    assert resumed.sharded.loss_scale == half.sharded.loss_scale


@given(st.lists(st.booleans(), max_size=60))
def test_the_scale_stays_a_power_of_two_of_at_least_one(overflows: list[bool]) -> None:
    scale = LossScale.of("float16")
    for is_overflow in overflows:
        scale.update(is_overflow)
    assert scale.value == max(1.0, FIRST / 2 ** sum(overflows))
    for _ in range(GROWTH_EVERY):
        scale.update(is_overflow=False)
    assert scale.value == 2 * max(1.0, FIRST / 2 ** sum(overflows))
