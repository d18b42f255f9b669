"""token_logprob against float64."""

import pytest
import torch

from arl.kernels import logprob as module
from arl.kernels.logprob import token_logprob, token_logprob_ref


def case(rows: int, vocab: int, scale: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows + vocab)
    return (torch.randn(rows, vocab) * scale).to(dtype).requires_grad_(), torch.randint(vocab, (rows,))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("rows", "vocab", "scale"), [(37, 101, 1.0), (1, 16, 3.0), (5, 7, 1e4), (0, 16, 1.0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_values_and_gradient_equal_the_float64_reference(
    rows: int,
    vocab: int,
    scale: float,
    dtype: torch.dtype,
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 4 * vocab * 8)  # several chunks of eight rows
    logits, targets = case(rows, vocab, scale, dtype)
    exact = logits.detach().double().requires_grad_()
    weights = torch.randn(rows)
    results = [token_logprob(logits, targets, temperature), token_logprob_ref(exact, targets, temperature)]
    for logprob, _ in results:
        (logprob * weights).sum().backward()  # type: ignore[no-untyped-call]
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5 * max(1.0, scale))
    assert logits.grad is not None
    rtol, atol = (2**-8, 1e-6) if dtype == torch.bfloat16 else (1e-4, 1e-5)
    if scale < 1e3:  # at 1e4, one float32 ulp of a logit is already a millinat
        torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=rtol, atol=atol)


def test_gradcheck_in_float64() -> None:
    logits, targets = case(6, 9, 2.0, torch.float64)
    assert torch.autograd.gradcheck(lambda x: token_logprob(x, targets, 0.8)[0], (logits,))


def test_ruled_out_tokens_have_no_probability_and_no_gradient() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 1.0], [5.0, float("-inf"), float("-inf")]], requires_grad=True)
    logprob, entropy = token_logprob(logits, torch.tensor([2, 0]))
    reference = token_logprob_ref(logits, torch.tensor([2, 0]))
    torch.testing.assert_close(logprob, reference[0])
    torch.testing.assert_close(entropy, reference[1])
    logprob.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad[:, 1].tolist() == [0.0, 0.0]
    assert torch.isfinite(logits.grad).all()


def test_logprobs_never_exceed_zero() -> None:
    logits = torch.full((4, 8), -1e4)
    logits[:, 3] = 1e4
    logprob, entropy = token_logprob(logits, torch.tensor([3, 3, 3, 3]))
    assert (logprob <= 0).all()
    assert (entropy >= 0).all()


def test_nan_logits_stay_visible() -> None:
    logprob, _ = token_logprob(torch.full((1, 4), float("nan")), torch.tensor([0]))
    assert torch.isnan(logprob).all()
