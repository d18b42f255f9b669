"""Objectives against numbers worked out by hand."""

import math
from typing import Any

import pytest
import torch

from arl.config.objective_section import ObjectiveSection
from arl.train.algorithms.around_proximal import loglinear_proximal
from arl.train.algorithms.behavior_weight import Weight
from arl.train.algorithms.cispo import CISPO
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.gspo import GSPO
from arl.train.algorithms.m2po import M2PO
from arl.train.algorithms.objective import Objective
from arl.train.algorithms.ppo import PPO
from arl.train.algorithms.sapo import SAPO
from tests.train.columns import token_columns

CLIP: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.3}


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor([math.log(p) for p in probabilities])


def test_decoupled_ppo_weighs_the_clipped_gain_by_the_capped_behavior_weight() -> None:
    current = logs(0.30, 0.50, 0.10, 0.20).requires_grad_()
    proximal, behavior = logs(0.20, 0.25, 0.20, 0.20), logs(0.10, 0.50, 0.20, 0.02)
    advantages = torch.tensor([1.0, -1.0, -2.0, 3.0])
    loss, stats = DecoupledPPO(**CLIP).loss(token_columns(current, behavior, advantages, proximal=proximal))
    # u = 1.5, 2, .5, 1; w = 2, .5, 1, 10 → 5; gains: 1.3 (clipped), −2, −1.6 (clipped), 3
    assert loss.sum().item() == pytest.approx(-(2 * 1.3 + 0.5 * -2 + 1 * -1.6 + 5 * 3), rel=1e-5)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert current.grad is not None
    torch.testing.assert_close(current.grad, torch.tensor([0.0, 1.0, 0.0, -15.0]))
    assert stats["is_clipped"].tolist() == [True, False, True, False]
    assert stats["is_capped"].tolist() == [False, False, False, True]
    torch.testing.assert_close(stats["ratio"], torch.tensor([1.5, 2.0, 0.5, 1.0]))
    torch.testing.assert_close(stats["weight"], torch.tensor([2.0, 0.5, 1.0, 5.0]))
    torch.testing.assert_close(
        stats["kl_behavior_proximal"][:2], torch.tensor([2 - 1 - math.log(2), 0.5 - 1 + math.log(2)])
    )


def test_naive_ppo_clips_around_the_behavior_policy_and_has_no_weight() -> None:
    current = logs(0.30, 0.11).requires_grad_()
    loss, stats = PPO(**CLIP).loss(token_columns(current, logs(0.20, 0.10), torch.tensor([1.0, 1.0])))
    assert loss.sum().item() == pytest.approx(-(1.3 + 1.1), rel=1e-5)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert current.grad is not None
    torch.testing.assert_close(current.grad, torch.tensor([0.0, -1.1]))
    assert set(stats) == {"ratio", "is_clipped", "is_clipped_up", "is_clipped_down", "kl_behavior_current"}
    drift = [1.5 - 1 - math.log(1.5), 1.1 - 1 - math.log(1.1)]
    torch.testing.assert_close(stats["kl_behavior_current"], torch.tensor(drift))


def test_gspo_clips_and_weighs_sequences_by_the_geometric_means_over_their_tokens() -> None:
    sequences = torch.tensor([1, 0, 1])
    current, proximal = logs(0.8, 0.2, 0.1).requires_grad_(), logs(0.2, 0.1, 0.4)
    behavior, advantages = logs(0.1, 0.01, 0.05), torch.tensor([1.0, 3.0, 1.0])
    loss, stats = GSPO(**CLIP).loss(
        token_columns(current, behavior, advantages, proximal=proximal, sequences=sequences)
    )
    # sequence 1: u = √(4·¼) = 1, w = √(2·8) = 4, gain 1; sequence 0: u = 2, w = 10 → 5, gain 3.9 (clipped)
    assert loss.sum().item() == pytest.approx(-(4 * 1 * 2 + 5 * 3.9), rel=1e-5)  # at each token
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert current.grad is not None
    torch.testing.assert_close(current.grad, torch.tensor([-4.0, 0.0, -4.0]))
    assert stats["is_clipped"].tolist() == stats["is_capped"].tolist() == [False, True, False]
    torch.testing.assert_close(stats["ratio"], torch.tensor([1.0, 2.0, 1.0]))
    torch.testing.assert_close(stats["weight"], torch.tensor([4.0, 5.0, 4.0]))


def test_cispo_clips_the_weight_of_the_gradient_and_no_token() -> None:
    current = logs(0.30, 0.11, 0.05).requires_grad_()
    behavior, advantages = logs(0.10, 0.10, 0.10), torch.tensor([1.0, -2.0, 1.0])
    objective = CISPO(clip_low=0.4, clip_high=0.5, weight=Weight(mode="off"))
    loss, stats = objective.loss(token_columns(current, behavior, advantages, proximal=behavior))
    # u = 3, 1.1, ½, clipped to 1.5, 1.1, .6
    (gradient,) = torch.autograd.grad(loss.sum(), current)
    torch.testing.assert_close(gradient, torch.tensor([-1.5, 2.2, -0.6]))
    torch.testing.assert_close(loss[0].item(), -1.5 * math.log(0.3))
    assert stats["is_clipped_up"].tolist() == [True, False, False]
    assert stats["is_clipped_down"].tolist() == [False, False, True]


def test_sapo_is_u_a_near_one_and_fades_away_from_it() -> None:
    """4 σ(τ (u − 1)) / τ has at u = 1 the value 2 / τ and the slope 1, and at u = 3 the slope 4 σ(2τ) σ(−2τ)."""
    current = logs(0.10, 0.10, 0.30).requires_grad_()
    behavior, advantages = logs(0.10, 0.10, 0.10), torch.tensor([1.0, -2.0, 1.0])
    loss, _ = SAPO(tau_negative=2.0).loss(token_columns(current, behavior, advantages, proximal=behavior))
    torch.testing.assert_close(loss[:2].detach(), torch.tensor([-2.0, 2.0]))
    (gradient,) = torch.autograd.grad(loss.sum(), current)
    slope = 4 / (1 + math.exp(-2)) / (1 + math.exp(2))
    torch.testing.assert_close(gradient, torch.tensor([-1.0, 2.0, -3 * slope]))


def test_m2po_leaves_out_the_farthest_tokens_until_the_second_moment_is_small() -> None:
    proximal = torch.tensor([0.1, 0.5, -0.2, -1.0]) - 2
    behavior = torch.full((4,), -2.0)  # squares .01, .25, .04, 1: means of the smallest .01, .025, .1, .325
    tokens = token_columns(proximal.clone().requires_grad_(), behavior, torch.ones(4), proximal=proximal)
    loss, stats = M2PO(second_moment=0.04, weight=Weight(mode="off")).loss(tokens)
    assert stats["objective/left_out"].tolist() == [False, True, False, True]
    assert loss.tolist() == [-1.0, 0.0, -1.0, 0.0]


@pytest.mark.parametrize(
    ("sections", "expected"),
    [  # two trajectories with w = 4, 1 and ½, ½
        ([{"high": 2.0}], [2.0, 1.0, 0.5, 0.5]),  # truncated importance sampling
        ([{"low": 0.6, "high": 2.0}], [2.0, 1.0, 0.6, 0.6]),
        ([{"low": 0.6, "high": 2.0, "mode": "mask"}], [0.0, 1.0, 0.0, 0.0]),  # IcePop
        ([{"level": "sequence_mean", "high": 1.5}], [1.5, 1.5, 0.5, 0.5]),
        ([{"level": "sequence_product", "low": 0.3, "high": 5.0, "mode": "mask"}], [4.0, 4.0, 0.0, 0.0]),
        ([{"level": "sequence_product", "low": 0.3, "high": 5.0, "mode": "reject"}], [1.0, 1.0, 0.0, 0.0]),
        ([{"criterion": "k1", "low": -1.0, "mode": "mask"}], [0.0, 1.0, 0.5, 0.5]),  # −log w: −1.39, 0, .69, .69
        ([{"criterion": "k2", "high": 0.5, "mode": "reject"}], [0.0, 1.0, 1.0, 1.0]),  # .96, 0, .24, .24
        ([{"criterion": "k3", "level": "sequence_mean", "high": 0.5, "mode": "mask"}], [0.0, 0.0, 0.5, 0.5]),
        ([{"high": 2.0}, {"level": "sequence_mean", "low": 0.6, "mode": "reject"}], [2.0, 1.0, 0.0, 0.0]),
    ],
)
def test_a_weight_is_of_its_level_and_capped_masked_or_rejected_by_its_criterion(
    sections: list[dict[str, Any]], expected: list[float]
) -> None:
    objective = ObjectiveSection.model_validate({"kind": "decoupled_ppo", "weight": sections})
    assert isinstance(objective, DecoupledPPO)
    behavior, sequences = logs(0.1, 0.4, 0.4, 0.8), torch.tensor([0, 0, 1, 1])
    proximal = logs(0.4, 0.4, 0.2, 0.4)
    tokens = token_columns(proximal, behavior, torch.ones(4), proximal=proximal, sequences=sequences)
    loss, stats = objective.loss(tokens)
    torch.testing.assert_close(stats["weight"], torch.tensor(expected))
    torch.testing.assert_close(loss, -torch.tensor(expected))


def test_no_term_of_a_token_counts_that_is_rejected_and_not_counted() -> None:
    weight = {"mode": "reject", "high": 2.0, "denominator": "narrowed"}
    objective = ObjectiveSection.model_validate({"weight": weight, "entropy_coefficient": 0.1})
    assert isinstance(objective, Objective)
    proximal = logs(0.3, 0.2)  # w = 3 and 1
    tokens = token_columns(proximal.clone().requires_grad_(), logs(0.1, 0.2), torch.ones(2), proximal=proximal)
    loss, _ = objective.total(tokens)
    torch.testing.assert_close(loss.detach(), torch.tensor([0.0, -1.1]))


@pytest.mark.parametrize("impossible", ["current", "proximal"])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("proximal", ["recompute", "loglinear"])
@pytest.mark.parametrize("kind", ["decoupled_ppo", "ppo", "cispo", "sapo", "m2po"])
def test_a_token_that_became_impossible_gives_finite_numbers(
    kind: str, advantage: float, impossible: str, proximal: str
) -> None:
    objective = ObjectiveSection.model_validate({"kind": kind} | ({} if kind == "ppo" else {"proximal": proximal}))
    assert isinstance(objective, Objective)
    columns = {"current": torch.tensor([-1.0, -1.0]), "proximal": torch.tensor([-1.5, -1.5])}
    columns[impossible][0] = -math.inf
    current = columns["current"].requires_grad_()
    gains = torch.tensor([advantage, 1.0])
    loss, stats = objective.loss(token_columns(current, logs(0.3, 0.3), gains, proximal=columns["proximal"]))
    assert loss.isfinite().all()
    assert torch.autograd.grad(loss.sum(), current)[0].isfinite().all()
    assert all(value.isfinite().all() for value in stats.values())


def test_loglinear_moves_from_behavior_to_current_with_age() -> None:
    proximal = loglinear_proximal(
        torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-2.0, -2.0, -2.0]), torch.tensor([7, 6, 4]), version=7
    )
    torch.testing.assert_close(proximal, torch.tensor([-2.0, -1.5, -1.25]))
    with pytest.raises(RuntimeError, match="future"):
        loglinear_proximal(torch.zeros(1), torch.zeros(1), torch.tensor([8]), version=7)


@pytest.mark.parametrize("log_ratio", [19.0, 21.0, 89.0, 1000.0])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_a_ratio_that_would_overflow_leaves_loss_and_gradient_finite(log_ratio: float, advantage: float) -> None:
    current = torch.tensor([0.0]).requires_grad_()
    tokens = token_columns(current, torch.tensor([-log_ratio]), torch.tensor([advantage]))
    loss, _ = PPO(**CLIP).loss(tokens)
    loss.sum().backward()  # type: ignore[no-untyped-call]
    ratio = math.exp(min(log_ratio, 20.0))
    assert current.grad is not None
    if advantage > 0:  # the clip is chosen
        assert loss.sum().item() == pytest.approx(-1.3 * advantage)
        assert current.grad.item() == 0.0
    else:
        assert loss.sum().item() == pytest.approx(-ratio * advantage, rel=1e-5)
        assert current.grad.item() == pytest.approx(-ratio * advantage, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "expected", "gradient"),
    [
        ({"weight": {"high": 4.0}}, 4 * 3 - 2 * 0.5, [4 * 3.0, 2 * -0.5]),
        ({"weight": {"high": 4.0, "mode": "mask"}}, -2 * 0.5, [0.0, 2 * -0.5]),
        ({"weight": {"mode": "off"}}, 3 - 0.5, [3.0, -0.5]),
        ({"weight": {"mode": "off"}, "dual_clip": 2.5}, 2.5 - 0.5, [0.0, -0.5]),
        ({"weight": {"mode": "off"}, "dual_clip": 3.5}, 3 - 0.5, [3.0, -0.5]),
        ({"weight": {"mode": "off"}, "entropy_coefficient": 0.1}, 3 - 0.5 - 0.1 * 2, [3.0, -0.5]),
    ],
)
def test_the_weight_is_capped_masked_or_off_and_a_dual_clip_bounds_the_loss(
    settings: dict[str, Any], expected: float, gradient: list[float]
) -> None:
    """u = 3 and ½, w = 8 and 2, A = −1 and 1; entropies are 1."""
    current, proximal, behavior = logs(0.6, 0.1).requires_grad_(), logs(0.2, 0.2), logs(0.025, 0.1)
    objective = DecoupledPPO(**CLIP, **settings)
    loss, _ = objective.total(token_columns(current, behavior, torch.tensor([-1.0, 1.0]), proximal=proximal))
    assert loss.sum().item() == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), current)[0], torch.tensor(gradient))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"weight": {"mode": "off", "high": 5.0}}, "nothing reads low, high"),
        ({"weight": {"criterion": "k2", "high": 1.0}}, "a divergence has no cap"),
        ({"weight": {"criterion": "k2", "mode": "mask"}}, "no default bounds"),
        ({"weight": {"criterion": "k3", "mode": "mask", "high": -1.0}}, "k3 is never below 0"),
        ({"weight": {"low": 6.0, "mode": "mask"}}, "must be less than high, which is 5"),
        ({"weight": {"mode": "mask", "denominator": "narrowed"}, "normalizer": "sequences"}, "normalizer is sequences"),
        ({"weight": []}, "an empty list"),
        ({"normalizer": "constant"}, "give both or neither"),
        ({"dual_clip": 1.0}, "greater than 1"),
    ],
)
def test_a_setting_that_nothing_reads_or_that_cannot_be_is_refused(fields: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        ObjectiveSection.model_validate({"kind": "decoupled_ppo", **fields})
