"""A critic's values become advantages, whatever the packing; it learns, and a checkpoint brings it back."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arl.config.recipe import Recipe, Train
from arl.config.reference_section import Reference
from arl.metrics.names import number
from arl.train.algorithms.advantage import EpisodeColumns
from arl.train.algorithms.gae import GAE, value_loss
from arl.train.algorithms.ppo import PPO
from arl.train.learner import Learner
from arl.train.micro_batch import MicroBatch
from arl.train.packing import Shard
from arl.types import Batch
from tests.train.one_rank import assert_same_weights, weights
from tests.train.synthetic import batch, packed

pytestmark = pytest.mark.usefixtures("alone")


def gae_of(rewards: list[np.ndarray], values: list[np.ndarray], discount: float, lam: float) -> list[np.ndarray]:
    """The recursion of the paper, in float64: A_t = δ_t + γλ A_{t+1}."""
    found = []
    for r, v in zip(rewards, values, strict=True):
        advantages = np.zeros(len(r))
        following = 0.0
        for t in reversed(range(len(r))):
            v_next = v[t + 1] if t + 1 < len(r) else 0.0
            following = r[t] + discount * v_next - v[t] + discount * lam * following
            advantages[t] = following
        found.append(advantages)
    return found


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    discount=st.sampled_from([0.0, 0.9, 1.0]),
    lam=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    seed=st.integers(0, 99),
)
def test_gae_is_the_recursion_of_its_paper(lengths: list[int], discount: float, lam: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rewards = [rng.normal(size=n) for n in lengths]
    values = [rng.normal(size=n) for n in lengths]
    given_columns = EpisodeColumns(
        rewards=np.array([r.sum() for r in rewards]),
        group_sizes=np.ones(len(lengths), np.int64),
        num_loss_tokens=np.array(lengths),
        values=np.concatenate(values),
        token_rewards=np.concatenate(rewards),
    )
    found = GAE(discount=discount, lam=lam).compute(given_columns)
    np.testing.assert_allclose(found, np.concatenate(gae_of(rewards, values, discount, lam)), atol=1e-9)


def test_the_value_loss_takes_the_larger_of_the_plain_and_the_clipped_one() -> None:
    values = torch.tensor([0.9, 0.2, 0.35, 1.5], requires_grad=True)
    old = torch.tensor([0.3, 0.3, 0.3, 1.4])
    returns = torch.tensor([1.0, 1.0, 1.0, 0.0])
    losses, is_clipped = value_loss(values, old, returns, 0.2)  # V within: 0.5, 0.2, 0.35, 1.5
    expected = [0.5 * 0.5**2, 0.5 * 0.8**2, 0.5 * 0.65**2, 0.5 * 1.5**2]
    assert losses.tolist() == pytest.approx(expected)
    assert is_clipped.tolist() == [True, False, False, False]
    (gradient,) = torch.autograd.grad(losses.sum(), values)
    assert gradient.tolist() == pytest.approx([0.0, -0.8, -0.65, 1.5])
    assert value_loss(values, old, returns, None)[0].tolist() == pytest.approx([0.005, 0.32, 0.21125, 1.125])


def learner(
    model: Path,
    advantage: GAE,
    version: int = 0,
    resumed: bool = False,
    objective: PPO | None = None,
    **critic: Any,
) -> Learner:
    train = Train.model_validate(
        {
            "minibatches": 2,
            "dtype": "float32",
            "learning_rate": 1.5e-4,
            "critic": {"learning_rate": 2e-3, **critic},
        }
    )
    return Learner(model, train, objective or PPO(), version=version, resumed=resumed, advantage=advantage)


def shard_of(given: Batch, capacity: int = 16_384) -> Shard[MicroBatch]:
    (shard,), report = packed(given, 2, capacity, objective=PPO(), advantage=GAE())
    assert "advantage/zero_fraction" not in report
    return shard


def recorded(trained: Learner, given: Batch, capacity: int = 16_384) -> np.ndarray:
    """The advantages that a step computes, in the order of the batch's loss tokens."""
    shard = shard_of(numbered(given), capacity)
    found: list[list[dict[str, torch.Tensor]]] = [[{} for _ in m.micro_batches] for m in shard.minibatches]
    assert trained.critic is not None
    trained.critic.estimate(shard.minibatches, found)
    advantages: dict[float, float] = {}
    for minibatch, of_minibatch in zip(shard.minibatches, found, strict=True):
        for pack, own in zip(minibatch.micro_batches, of_minibatch, strict=True):
            keys = pack.columns["behavior_logprobs"].astype(np.float64)
            advantages |= dict(zip(keys.tolist(), own["advantages"].tolist(), strict=True))
    return np.array([advantages[key] for key in sorted(advantages)])


def numbered(given: Batch) -> Batch:
    """Let the behavior logprob of each token be its number, −1, −2, …, by which a test finds it again."""
    start = 0
    groups = []
    for group in given.groups:
        trajectories = []
        for t in group.trajectories:
            numbers = np.where(t.loss_mask, -np.arange(start, start + len(t.token_ids)), 0).astype(np.float32)
            start += len(t.token_ids)
            trajectories.append(msgspec.structs.replace(t, behavior_logprobs=numbers))
        groups.append(msgspec.structs.replace(group, trajectories=tuple(trajectories)))
    return Batch(given.version, tuple(groups))


def long_ones_rewarded(given: Batch) -> Batch:
    """The same batch, in which a trajectory above the mean length is right."""
    mean = np.mean([len(t.token_ids) for g in given.groups for t in g.trajectories])
    groups = []
    for group in given.groups:
        judged = [msgspec.structs.replace(t, reward=float(len(t.token_ids) > mean)) for t in group.trajectories]
        groups.append(msgspec.structs.replace(group, trajectories=tuple(judged)))
    return Batch(given.version, tuple(groups))


def test_with_values_of_zero_the_advantage_is_the_return(tiny: Path) -> None:
    given_batch = batch(0, groups=4, size=4)
    trained = learner(tiny, GAE(whiten=False))
    trajectories = [t for g in given_batch.groups for t in g.trajectories]
    expected = np.concatenate([np.full(int(t.loss_mask.sum()), t.reward) for t in trajectories])
    np.testing.assert_array_equal(recorded(trained, given_batch)[::-1], expected)


def test_the_penalty_of_a_reference_is_a_reward_of_its_token(tiny: Path) -> None:
    """Values are 0 and γ = λ = 1, so an advantage is the reward minus the penalties from its token on."""
    penalty = Reference(path=str(tiny), coefficient=0.1, kl="k1", place="reward")
    trained = learner(tiny, GAE(whiten=False), objective=PPO(reference=penalty))
    minibatches = shard_of(batch(0, groups=4, size=4)).minibatches
    for minibatch, of_minibatch in zip(
        minibatches, trained.beside.columns(minibatches, trained.version, False), strict=True
    ):
        for pack, own in zip(minibatch.micro_batches, of_minibatch, strict=True):
            penalties = 0.1 * (pack.columns["behavior_logprobs"] - own["reference_logprobs"].numpy())
            rewards = pack.columns["advantages"] - penalties
            for number_of in range(pack.sequences.max() + 1):
                own_tokens = pack.sequences == number_of
                expected = rewards[own_tokens][::-1].cumsum()[::-1]
                np.testing.assert_allclose(own["advantages"].numpy()[own_tokens], expected, atol=1e-5)


def test_advantages_do_not_depend_on_the_packing_and_whitened_they_have_mean_0(tiny: Path) -> None:
    trained = learner(tiny, GAE(discount=0.99, lam=0.9))
    for version in range(2):
        trained.step(shard_of(batch(version, groups=4, size=4, seed=version)))
    given_batch = batch(2, groups=4, size=4, seed=9)
    advantages = recorded(trained, given_batch)
    np.testing.assert_allclose(recorded(trained, given_batch, capacity=64), advantages, atol=1e-5)
    assert abs(advantages.mean()) < 1e-6
    assert advantages.std(ddof=1) == pytest.approx(1.0, abs=1e-5)
    assert len(np.unique(advantages)) > len(advantages) // 2


def test_the_critic_learns_while_a_warm_up_leaves_the_policy_alone(tiny: Path) -> None:
    trained = learner(tiny, GAE(), warmup_steps=8, clip=10.0)
    before = weights(trained)
    given_batch = long_ones_rewarded(batch(0, groups=8, size=4))
    metrics = [trained.step(msgspec.structs.replace(shard_of(given_batch), version=v)) for v in range(8)]
    assert_same_weights(before, weights(trained), 0.0)
    assert number(metrics[0], "critic/explained_variance") == 0.0  # every value is 0
    assert number(metrics[-1], "critic/explained_variance") > 0.3
    assert number(metrics[-1], "critic/loss") < number(metrics[0], "critic/loss")
    assert metrics[-1]["critic/clip_fraction"] == 0.0
    trained.step(msgspec.structs.replace(shard_of(given_batch), version=8))
    assert any(not torch.equal(before[name], weight) for name, weight in weights(trained).items())


def test_a_checkpoint_brings_policy_and_critic_back_to_the_last_bit(tiny: Path, tmp_path: Path) -> None:
    def train_from(trained: Learner) -> dict[str, torch.Tensor]:
        for version in range(trained.version, 4):
            trained.step(shard_of(batch(version, groups=4, size=4, seed=version)))
        assert trained.critic is not None
        return weights(trained) | {f"critic.{n}": w for n, w in trained.critic.model.full_state(torch.float32).items()}

    trained = learner(tiny, GAE())
    trained.step(shard_of(batch(0, groups=4, size=4)))
    trained.step(shard_of(batch(1, groups=4, size=4)))
    trained.write(trained.training_state(), tmp_path)
    resumed = learner(tmp_path, GAE(), version=2, resumed=True)
    assert_same_weights(train_from(trained), train_from(resumed), 0.0)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"advantage": "gae"}, "add a section train.critic"),
        ({"train": {"critic": {}}}, "advantage.kind grpo reads no values"),
        (
            {
                "advantage": "gae",
                "train": {"critic": {}},
                "objective": {"kind": "gspo", "clip_low": 0.1, "clip_high": 0.1},
            },
            "differs from token to token",
        ),
    ],
)
def test_a_critic_that_nothing_reads_and_a_lack_of_one_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Recipe.model_validate({"model": {"path": "x"}, "data": {"task": "running_checksum"}, **sections})
