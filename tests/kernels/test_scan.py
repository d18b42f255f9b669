"""Compare segment_scan with a plain loop."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arl.kernels.scan import segment_scan, segment_scan_ref
from tests.examples import examples
from tests.kernels.conftest import INTERPRETED, PROPORTION

KERNELS = examples(PROPORTION)


def offsets(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()] if lengths else [0], dtype=torch.int32)


@KERNELS
@given(st.lists(st.integers(0, 40), max_size=8), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 2**31))
def test_every_segment_is_scanned_alone(lengths: list[int], zeros: float, seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(sum(lengths))
    decay = torch.rand(sum(lengths)) * 2 - 1
    decay[torch.rand(len(x)) < zeros] = 0.0
    y = segment_scan(x, decay, offsets(lengths))
    torch.testing.assert_close(y.double(), segment_scan_ref(x, decay, offsets(lengths)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 1023, 1024, 1025, 3000])
def test_long_segments_without_decay_are_suffix_sums(length: int) -> None:
    x = torch.randint(-3, 4, (2 * length,)).float()  # integers: exact in any order
    y = segment_scan(x, torch.ones(2 * length), offsets([length, length]))
    expected = x.view(2, length).flip(1).cumsum(1).flip(1).view(-1)
    torch.testing.assert_close(y, expected, rtol=0, atol=0)


def test_float64_stays_float64() -> None:
    x = torch.randn(50, dtype=torch.float64)
    decay = torch.rand(50, dtype=torch.float64)
    torch.testing.assert_close(segment_scan(x, decay, offsets([20, 30])), segment_scan_ref(x, decay, offsets([20, 30])))


def test_generalized_advantages_are_one_scan() -> None:
    """Compute A_t = Σ (γλ)^k δ_{t+k}, δ_t = r_t + γ V_{t+1} − V_t, V = 0 after the last step (arXiv 1506.02438)."""
    rewards = torch.tensor([0.0, 0.0, 1.0, 2.0])
    values = torch.tensor([0.5, 0.6, 0.8, 1.0])
    gamma = 0.9
    lam = 0.5
    following = torch.tensor([0.6, 0.8, 0.0, 0.0])  # two episodes, of three steps and of one
    advantages = segment_scan(
        rewards + gamma * following - values, torch.full((4,), gamma * lam), torch.tensor([0, 3, 4], dtype=torch.int32)
    )
    last = 1.0 - 0.8
    middle = 0.9 * 0.8 - 0.6 + 0.45 * last
    first = 0.9 * 0.6 - 0.5 + 0.45 * middle
    torch.testing.assert_close(advantages, torch.tensor([first, middle, last, 1.0]))


@pytest.mark.skipif(INTERPRETED, reason="on a device the host does not read the offsets")
@pytest.mark.parametrize("ends", [[0, 4], [1, 5]])
def test_offsets_must_cover_the_tensor(ends: list[int]) -> None:
    with pytest.raises(AssertionError, match="the offsets cover"):
        segment_scan(torch.zeros(5), torch.zeros(5), torch.tensor(ends, dtype=torch.int32))


def test_offsets_must_be_int32() -> None:
    with pytest.raises(AssertionError, match=r"torch\.int64"):
        segment_scan(torch.zeros(5), torch.zeros(5), torch.tensor([0, 5], dtype=torch.int64))
