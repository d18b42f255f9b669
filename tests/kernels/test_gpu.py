"""Check the kernels on an NVIDIA GPU, at the sizes of real models."""

import pytest
import torch
from torch import Tensor

from arl.kernels import head as chunked_head
from arl.kernels.linear_logprob import linear_logprob
from arl.kernels.linear_policy_loss import RowLoss, linear_policy_loss
from arl.kernels.logprob import packed_logprob, packed_logprob_ref

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: pytest -m gpu")]
VOCAB = 151_936


def head(rows: int, vocab: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(vocab, width, device="cuda", dtype=torch.bfloat16) * (3 / width**0.5)
    return hidden.requires_grad_(), weight.requires_grad_(), torch.randint(vocab, (rows,), device="cuda")


def weighted(weights: Tensor) -> RowLoss:
    return lambda logprob, entropy, rows: ((logprob * weights[rows]).sum(), (logprob.detach(),))


@pytest.mark.parametrize("vocab", [7, 4099, VOCAB])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_given_logits_agree_with_float64(vocab: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = (torch.randn(33, vocab, device="cuda") * 30).to(dtype)
    logits[:, 1] = float("-inf")
    logits[5] += 1e4
    targets = torch.randint(2, vocab, (33,), device="cuda")
    exact = logits.double().requires_grad_()
    logits.requires_grad_()
    ours = packed_logprob(logits, targets, 0.8)
    truth = packed_logprob_ref(exact, targets, 0.8)
    torch.testing.assert_close(tuple(x.double() for x in ours), truth, rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(ours[0].sum(), logits)
    (expected,) = torch.autograd.grad(truth[0].sum(), exact)
    rounding = {torch.bfloat16: 2**-8, torch.float16: 2**-10}.get(dtype, 1e-4)
    torch.testing.assert_close(gradient.double(), expected, rtol=rounding, atol=1e-6)


def test_more_than_two_billion_logits_are_addressed() -> None:
    logits = torch.zeros(15_000, VOCAB, device="cuda", dtype=torch.bfloat16)
    logits[-1, -1] = 5.0
    logprob, _ = packed_logprob(logits, torch.full((15_000,), VOCAB - 1, device="cuda"))
    assert logprob[-1] > logprob[0] + 4.9


@pytest.mark.parametrize("rows", [0, 1, 5000])
def test_fused_functions_are_no_less_exact_than_pytorch(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare errors against float32 products of the same inputs with those of eager PyTorch in bfloat16."""
    monkeypatch.setattr(chunked_head, "CHUNK_BYTES", {"cuda": 1 << 26})  # five chunks of 5,000 rows
    hidden, weight, targets = head(rows, 32_003, 512)
    weights = torch.randn(rows, device="cuda")
    wide = [x.detach().float().requires_grad_() for x in (hidden, weight)]
    truth, _ = packed_logprob_ref(wide[0] @ wide[1].T, targets)
    eager, _ = packed_logprob_ref(hidden @ weight.T, targets)
    fused = linear_policy_loss(hidden, weight, targets, weighted(weights))
    again, _ = linear_logprob(hidden, weight, targets)
    torch.testing.assert_close(fused[1], again)
    expected = torch.autograd.grad((truth * weights).sum(), wide)
    theirs = torch.autograd.grad((eager * weights).sum(), (hidden, weight))
    for ours in (
        torch.autograd.grad(fused[0], (hidden, weight)),
        torch.autograd.grad((again * weights).sum(), (hidden, weight)),
    ):
        for one, other, exact in zip(ours, theirs, expected, strict=True):
            error = (one.float() - exact).square().sum().sqrt()
            their_error = (other.float() - exact).square().sum().sqrt()
            assert error <= 1.5 * their_error + 1e-6


@pytest.mark.parametrize("width", [1536, 4096])
def test_a_real_head_takes_at_most_two_gigabytes(width: int) -> None:
    """Count the memory beyond inputs, gradients and what is saved: d hidden, and d weight in float32."""
    hidden, weight, targets = head(32_768, VOCAB, width)
    row_loss = weighted(torch.randn(len(hidden), device="cuda") / len(hidden))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loss = linear_policy_loss(hidden, weight, targets, row_loss)[0]
    saved = hidden.numel() * 2 + weight.numel() * 4
    assert torch.cuda.max_memory_allocated() - before - saved <= 2e9
    torch.cuda.reset_peak_memory_stats()
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = hidden.numel() * 2 + weight.numel() * 2
    assert torch.cuda.max_memory_allocated() - before - saved - gradients <= 2e9
    assert hidden.grad is not None and bool(hidden.grad.isfinite().all())
