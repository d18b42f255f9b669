"""Compare packed_logprob and policy_loss, from given logits, with float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arl.kernels.logprob import packed_logprob, packed_logprob_ref
from tests.examples import examples
from tests.kernels.conftest import INTERPRETED, PROPORTION, needs_float64

KERNELS = examples(PROPORTION)
INF = float("inf")
ROUNDING = {torch.bfloat16: 2**-7 if INTERPRETED else 2**-8, torch.float16: 2**-10}  # the interpreter cuts off
pytestmark = pytest.mark.usefixtures("small_chunks")


def case(rows: int, vocab: int, scale: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows + vocab)
    logits = (torch.randn(rows, vocab) * scale).to(dtype)
    targets = torch.randint(vocab, (rows,))
    return logits.requires_grad_(), targets


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("rows", "vocab", "scale"), [(37, 101, 1.0), (1, 16, 3.0), (5, 4099, 1e4), (0, 16, 1.0)])
@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float64, marks=needs_float64), torch.float32, torch.bfloat16, torch.float16]
)
def test_values_and_gradient_equal_the_float64_reference(
    rows: int, vocab: int, scale: float, dtype: torch.dtype, temperature: float
) -> None:
    logits, targets = case(rows, vocab, scale, dtype)
    exact = logits.detach().double().requires_grad_()
    weights = torch.randn(rows)
    results = [packed_logprob(logits, targets, temperature), packed_logprob_ref(exact, targets, temperature)]
    for logprob, _ in results:
        (logprob * weights).sum().backward()  # type: ignore[no-untyped-call]
    for ours, theirs in zip(*results, strict=True):  # huge logits cost no precision: differences from the peak
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=3e-6)
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=ROUNDING.get(dtype, 1e-4), atol=1e-6)


@KERNELS
@given(st.integers(0, 20), st.integers(1, 300), st.floats(0.1, 10.0), st.integers(0, 2**31))
def test_any_shape_agrees_and_no_logprob_exceeds_zero(rows: int, vocab: int, temperature: float, seed: int) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(rows, vocab) * 10
    logits[torch.rand(rows, vocab) < 0.3] = -INF
    logits[:, 0] = 0.0  # at least one token is allowed
    targets = torch.randint(vocab, (rows,))
    logprob, entropy = packed_logprob(logits, targets, temperature)
    reference = packed_logprob_ref(logits.double(), targets, temperature)
    torch.testing.assert_close((logprob.double(), entropy.double()), reference, rtol=1e-5, atol=3e-5)
    assert (logprob <= 0).all()
    assert (entropy >= 0).all()


@pytest.mark.parametrize("value", [float("nan"), INF, -INF])
def test_rows_without_a_distribution_stay_visible(value: float) -> None:
    logits = torch.zeros(2, 4)
    logits[0] = value
    logprob, _ = packed_logprob(logits, torch.tensor([0, 0]))
    assert torch.isnan(logprob).tolist() == [True, False]
