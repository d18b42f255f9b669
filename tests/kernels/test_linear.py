"""Compare linear_logprob and linear_policy_loss, fused behind the output head, with all logits at once in float64."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from arl.kernels import head
from arl.kernels.linear_logprob import (
    linear_logprob,
    linear_logprob_ref,
    linear_logprobs,
    linear_top_logprobs,
)
from arl.kernels.linear_policy_loss import LossAndStats, RowLoss, linear_policy_loss, linear_policy_loss_ref
from arl.train.algorithms.behavior_weight import Weight
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from tests.examples import examples
from tests.kernels.conftest import PROPORTION
from tests.train.columns import token_columns

KERNELS = examples(PROPORTION)
pytestmark = pytest.mark.usefixtures("small_chunks")


def inputs(rows: int, vocab: int, width: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(rows * 7919 + vocab)
    hidden = torch.randn(rows, width).to(dtype)
    weight = (torch.randn(vocab, width) / width**0.5).to(dtype)
    targets = torch.randint(vocab, (rows,))
    return hidden.requires_grad_(), weight.requires_grad_(), targets


OBJECTIVE = DecoupledPPO(clip_low=0.2, clip_high=0.28, weight=Weight(high=1.1))
KEPT = sorted({statistic.value for statistic in OBJECTIVE.statistics.values()})  # numbers of each token


def ppo(behavior: Tensor, advantages: Tensor) -> RowLoss:
    """Make the row loss of the decoupled objective."""
    proximal = behavior + 0.1 * advantages

    def row_loss(logprob: Tensor, entropy: Tensor, rows: slice) -> tuple[Tensor, tuple[Tensor, ...]]:
        center, recorded, gains = (x[rows].to(logprob.dtype) for x in (proximal, behavior, advantages))
        loss, per_token = OBJECTIVE.loss(token_columns(logprob, recorded, gains, proximal=center, entropy=entropy))
        return loss.sum(), tuple(per_token[name] for name in KEPT)

    return row_loss


def ppo_near(hidden: Tensor, weight: Tensor, targets: Tensor) -> RowLoss:
    """Take a behavior policy near this one, so that some ratios are clipped and some weights capped."""
    behavior = linear_logprob_ref(hidden.detach().double(), weight.detach().double(), targets)[0]
    advantages = torch.randint(-8, 9, (len(targets),)) / 4.0  # no weight so near its cap that rounding decides
    return ppo((behavior + 0.2 * torch.randn(len(targets))).clamp(max=0.0).float(), advantages)


def with_gradients(
    function: Callable[..., LossAndStats], tensors: tuple[Tensor, Tensor, Tensor], row_loss: RowLoss
) -> tuple[LossAndStats, tuple[Tensor, ...]]:
    result = function(*tensors, row_loss, 0.8)
    return result, torch.autograd.grad(3 * result[0], tensors[:2])


def doubled(tensors: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight, targets = tensors
    return hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_(), targets


@KERNELS
@given(st.integers(0, 60), st.integers(2, 200), st.integers(1, 16))
def test_the_fused_decoupled_objective_equals_the_one_from_all_logits(rows: int, vocab: int, width: int) -> None:
    """Compare loss, ratio, clip mask, behavior weight, KL, logprob, entropy and both gradients."""
    tensors = inputs(rows, vocab, width)
    row_loss = ppo_near(*tensors)
    ours, gradients = with_gradients(linear_policy_loss, tensors, row_loss)
    exact, exact_gradients = with_gradients(linear_policy_loss_ref, doubled(tensors), row_loss)
    stats = dict(zip(KEPT, ours[3], strict=True))
    exact_stats = dict(zip(KEPT, exact[3], strict=True))
    ratio = exact_stats["ratio"]
    near = ((ratio - 0.8).abs() < 1e-4) | ((ratio - 1.28).abs() < 1e-4)
    assume(not near.any())  # there rounding decides
    for name, ours_field in stats.items():
        exact_field = exact_stats[name]
        assert len(ours_field) == rows
        torch.testing.assert_close(ours_field.double(), exact_field.double(), rtol=1e-4, atol=1e-5)
    for one, other in zip((*ours[:3], *gradients), (*exact[:3], *exact_gradients), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    assert not (ours[1].requires_grad or ours[2].requires_grad)


def entropic(weights: Tensor) -> RowLoss:
    """Make a loss that is curved in logprob and in entropy, and in their product."""

    def row_loss(logprob: Tensor, entropy: Tensor, rows: slice) -> tuple[Tensor, tuple[Tensor, ...]]:
        own = weights[rows].to(logprob.dtype)
        terms = logprob.exp() * own + entropy.square() * (1 - own) - 0.3 * logprob * entropy
        return terms.sum(), (entropy.detach(),)

    return row_loss


@KERNELS
@given(st.integers(0, 60), st.integers(2, 200), st.integers(1, 16))
def test_a_loss_of_the_entropy_has_the_gradient_of_autograd(rows: int, vocab: int, width: int) -> None:
    tensors = inputs(rows, vocab, width)
    row_loss = entropic(torch.randn(rows))
    ours, gradients = with_gradients(linear_policy_loss, tensors, row_loss)
    exact, exact_gradients = with_gradients(linear_policy_loss_ref, doubled(tensors), row_loss)
    for one, other in zip((*ours[:3], *ours[3], *gradients), (*exact[:3], *exact[3], *exact_gradients), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    logprob, entropy = linear_logprob(*tensors, 0.8)
    loss, _ = row_loss(logprob, entropy, slice(0, rows))
    for one, other in zip(torch.autograd.grad(3 * loss, tensors[:2]), exact_gradients, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("unwritten_memory_is_nan")
@pytest.mark.parametrize("multiple", [1, 8])
def test_float32_logits_of_bfloat16_inputs_have_only_the_rounding_of_their_gradient(
    multiple: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The truth is float64 of the same inputs; gradients err no more than those of bfloat16 logits."""
    monkeypatch.setattr(head, "MULTIPLE", {"cpu": multiple})
    tensors = inputs(60, 101, 16, torch.bfloat16)
    row_loss = entropic(torch.randn(60))
    truth, exact = with_gradients(linear_policy_loss_ref, doubled(tensors), row_loss)
    losses = {}
    for dtype in (torch.float32, torch.bfloat16):
        fused = linear_policy_loss(*tensors, row_loss, 0.8, dtype)
        losses[dtype] = (fused, torch.autograd.grad(3 * fused[0], tensors[:2]))
    wide, gradients = losses[torch.float32]
    narrow, rounded = losses[torch.bfloat16]
    torch.testing.assert_close(wide[1].double(), truth[1], rtol=0, atol=1e-5)
    torch.testing.assert_close(wide[2].double(), truth[2], rtol=0, atol=1e-5)
    assert (narrow[1] - truth[1]).abs().max() > 1e-3
    for one, other, expected in zip(gradients, rounded, exact, strict=True):
        assert one.dtype == torch.bfloat16
        error = (one.double() - expected).square().mean().sqrt()
        error_of_rounded = (other.double() - expected).square().mean().sqrt()
        assert error <= 1.02 * error_of_rounded
    logprob, entropy = linear_logprob(*tensors, 0.8, torch.float32)
    torch.testing.assert_close((logprob, entropy), (wide[1], wide[2]))


@KERNELS
@given(st.integers(0, 40), st.integers(2, 200), st.integers(1, 16), st.integers(1, 8))
def test_several_targets_of_a_row_have_the_logprobs_and_gradients_of_all_logits(
    rows: int, vocab: int, width: int, num_targets: int
) -> None:
    """Targets of a row may be equal: the sampled token is often among a teacher's likeliest."""
    hidden, weight, _ = inputs(rows, vocab, width)
    targets = torch.randint(vocab, (rows, num_targets))
    slopes = torch.randn(rows, num_targets + 1)
    found = linear_logprobs(hidden, weight, targets, 0.8)
    gradients = torch.autograd.grad(sum_of(found, slopes), (hidden, weight))
    exact_hidden, exact_weight, _ = doubled((hidden, weight, targets))
    logp = (exact_hidden @ exact_weight.T / 0.8).log_softmax(-1)
    exact = logp.gather(1, targets), -(logp.exp() * logp).sum(-1)
    exact_gradients = torch.autograd.grad(sum_of(exact, slopes.double()), (exact_hidden, exact_weight))
    for ours, theirs in zip((*found, *gradients), (*exact, *exact_gradients), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)
    k = min(num_targets, vocab - 1)
    ids, top = linear_top_logprobs(hidden, weight, k, vocab - 1, 0.8)
    torch.testing.assert_close(top.double(), logp[:, : vocab - 1].topk(k).values, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logp.gather(1, ids), top.double(), rtol=1e-4, atol=1e-4)


def sum_of(results: tuple[Tensor, Tensor], slopes: Tensor) -> Tensor:
    logprobs, entropy = results
    return (logprobs * slopes[:, 1:]).sum() + (entropy * slopes[:, 0]).sum()
