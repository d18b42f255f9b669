"""Check the distribution of samples, truncation like SGLang's, and random numbers that belong to the request."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arl.engine.embedded.model_runner import sample, uniforms
from tests.examples import examples

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -torch.inf])
DRAWS = 20_000


def frequencies(temperature: float = 1.0, top_k: int = -1, top_p: float = 1.0) -> np.ndarray:
    """Return the frequency of each token over DRAWS requests with seeds 0, 1, …: (5,) float64."""
    uniform = torch.from_numpy(uniforms(np.arange(DRAWS).astype(np.uint64), np.full(DRAWS, 7)))
    truncation = (torch.full((DRAWS,), top_k), torch.full((DRAWS,), top_p))
    ids, logprobs = sample(LOGITS.expand(DRAWS, 5), torch.full((DRAWS,), temperature), uniform, truncation)
    torch.testing.assert_close(logprobs, torch.log_softmax(LOGITS / temperature, 0)[ids])
    return np.bincount(ids.numpy(), minlength=5) / DRAWS


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_with_their_probability(temperature: float) -> None:
    expected = torch.softmax(LOGITS / temperature, 0).numpy()
    assert np.abs(frequencies(temperature) - expected).max() < 4 * 0.5 / DRAWS**0.5


def test_truncation_keeps_the_fewest_tokens_that_hold_top_p() -> None:
    """Probabilities .64 .24 .09 .03: top_p .7 keeps two, top_k 1 one; a token of no weight never comes."""
    assert (frequencies(top_p=0.7) > 0).tolist() == [True, True, False, False, False]
    assert (frequencies(top_k=3) > 0).tolist() == [True, True, True, False, False]
    assert frequencies(top_k=1)[0] == 1.0
    assert frequencies(temperature=50.0)[4] == 0.0


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**20), st.integers(2, 40))
@examples(1)
def test_a_uniform_number_depends_on_seed_and_position_alone(seed: int, position: int, crowd: int) -> None:
    alone = uniforms(np.array([seed], np.uint64), np.array([position]))
    many = uniforms(np.full(crowd, seed, np.uint64), np.arange(position, position + crowd))
    assert alone[0] == many[0]
    assert 0 <= many.min() <= many.max() < 1
    assert len(set(many.tolist())) == crowd
