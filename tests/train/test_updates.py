"""The learning rate of an update, what decays in it, and when it is skipped."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from arl.config.objective_section import ESS, ObjectiveSection
from arl.config.recipe import Train
from arl.errors import TrainerError
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.objective import Objective
from arl.train.algorithms.ppo import PPO
from arl.train.learner import MAX_SKIPPED
from arl.train.micro_batch import MicroBatch
from arl.train.optimizer import FIRST, schedule_of
from arl.train.packing import Shard
from arl.train.sharded_model import ShardedModel, matrices
from arl.train.sharding import CUBLAS_WORKSPACE, init_ranks
from arl.types import Batch
from tests.train.families import make_family
from tests.train.one_rank import assert_same_weights, learner, shard_of, weights
from tests.train.synthetic import batch

pytestmark = pytest.mark.usefixtures("alone")


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


@pytest.mark.parametrize("decayed", ["all", "matrices"])
def test_an_update_without_gradient_shrinks_what_decays_and_nothing_else(
    decayed: Literal["all", "matrices"], tmp_path: Path
) -> None:
    path = make_family("qwen2-tied", tmp_path)
    train = Train(dtype="float32", weight_decay=0.5, decayed=decayed)
    model = ShardedModel(path, train, 1.0, init_ranks(deadline_seconds=60.0))
    before = model.full_state(torch.float32)
    for parameter in model.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    model.update(0.1, torch.zeros(()))
    after = model.full_state(torch.float32)
    shrunk = {name for name in before if torch.allclose(after[name], before[name] * (1 - 0.1 * 0.5))}
    kept = {name for name in before if torch.equal(after[name], before[name])}
    assert shrunk == (set(before) if decayed == "all" else matrices(model.model))
    assert shrunk | kept == set(before)


def test_a_rate_scaled_by_ess_makes_the_update_of_that_rate_times_the_root_of_the_metric(tiny: Path) -> None:
    given = shard_of(batch(4, groups=4), minibatches=1)
    scaled = learner(tiny, DecoupledPPO(), scale_by_ess=True, learning_rate=1e-3)
    metrics = scaled.step(given)
    size = metrics[ESS]
    assert isinstance(size, float)
    assert 0 < size < 0.99
    plain = learner(tiny, DecoupledPPO(), learning_rate=1e-3 * size**0.5)
    assert metrics["learning_rate"] == pytest.approx(plain.step(given)["learning_rate"], rel=1e-6)
    assert_same_weights(weights(scaled), weights(plain), 1e-7)


@pytest.mark.parametrize(
    "objective", [{"weight": {"mode": "mask", "high": 1e-8}}, {"kind": "m2po", "second_moment": 1e-12}]
)
def test_a_step_of_which_the_objective_keeps_nothing_is_an_error(tiny: Path, objective: dict[str, Any]) -> None:
    made = ObjectiveSection.model_validate(objective)
    assert isinstance(made, Objective)
    with pytest.raises(TrainerError, match="left out every token of a step; make"):
        learner(tiny, made).step(shard_of(batch(4, groups=4)))


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


def test_torch_accepts_every_operation_of_a_deterministic_step_with_shared_prompts(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CUBLAS_WORKSPACE, "")
    monkeypatch.delenv(CUBLAS_WORKSPACE)
    try:
        one = learner(tiny, DecoupledPPO(), dtype="float32", deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        one.step(shard_of(batch(4, groups=4, size=4), capacity=300))
    finally:
        torch.use_deterministic_algorithms(False)
