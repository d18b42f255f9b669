"""Sample for a whole batch at once, each row with its own parameters and its own random numbers.

logits (n, V) ─► log_softmax(logits / T), recorded ─► top-k and top-p, rarely ─► inverse CDF in float64

The uniform number of a token is a pure hash of its request's seed and its position in the sequence. A request
therefore draws the same tokens alone or in a crowd, and before or after it was interrupted.
"""

import numpy as np
import torch
from torch import Tensor

# splitmix64 (Steele, Lea and Flood, OOPSLA 2014): the distance of two states, and the factors of its finalizer.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1 = np.uint64(0xBF58476D1CE4E5B9)
_FACTOR_2 = np.uint64(0x94D049BB133111EB)


def _mix(x: np.ndarray) -> np.ndarray:
    """Apply the finalizer of splitmix64 to each element: (n,) uint64 ─► (n,) uint64."""
    x = x ^ (x >> np.uint64(30))
    x = x * _FACTOR_1
    x = x ^ (x >> np.uint64(27))
    x = x * _FACTOR_2
    return np.asarray(x ^ (x >> np.uint64(31)))


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the random number of each token: (n,) float64 in [0, 1), at most 1 − 2⁻⁵².

    Args:
        seeds: (n,) uint64, of the tokens' requests
        positions: (n,) int64, of the tokens in their sequences
    """
    streams = _mix(seeds + _GOLDEN)
    steps = positions.astype(np.uint64) * _GOLDEN
    mixed = _mix(streams + steps)
    return np.asarray((mixed >> np.uint64(12)) * 2.0**-52)


def sample(
    logits: Tensor, temperature: Tensor, uniform: Tensor, truncation: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Draw one token a row.

    Args:
        logits: (n, V), any float type
        temperature: (n,) float32, positive
        uniform: (n,) float64 in [0, 1 − 2⁻⁵²]
        truncation: top_k (n,) int64, −1 for all, and top_p (n,) float32; None when no row truncates

    Returns:
        token ids (n,) int64, and their log_softmax(logits / T) before truncation, (n,) float32
    """
    scaled = logits.float() / temperature[:, None]
    logprobs = torch.log_softmax(scaled, dim=-1)
    weights = logprobs.double().exp()
    if truncation is not None:
        top_k, top_p = truncation
        weights = _truncate(weights, top_k, top_p)
    cdf = weights.cumsum(dim=-1)
    total = cdf[:, -1:]
    # uniform · total stays below total in float64, so the first entry above it exists and has a weight.
    # A row of NaNs has no such entry: the id is clamped to a valid one, and the engine refuses its NaN logprob.
    threshold = uniform[:, None] * total
    ids = torch.searchsorted(cdf, threshold, right=True)
    last = cdf.shape[1] - 1
    ids = ids.clamp_(max=last)
    chosen = logprobs.gather(1, ids)
    return ids[:, 0], chosen[:, 0]


def _truncate(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Zero what top-k or top-p drops, as SGLang does: a token stays if at most top_p lies before it.

    Args:
        weights: (n, V) float64, each row sums to 1
        top_k: (n,) int64, −1 for all
        top_p: (n,) float32
    """
    vocab_size = weights.shape[1]
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab_size, device=weights.device)
    limit = torch.where(top_k < 0, vocab_size, top_k)
    before = ordered.cumsum(dim=-1) - ordered
    beyond_top_k = rank >= limit[:, None]
    beyond_top_p = before > top_p[:, None]
    drop = beyond_top_k | beyond_top_p
    kept_weights = ordered.masked_fill(drop, 0.0)
    truncated = torch.zeros_like(weights)
    return truncated.scatter_(1, order, kept_weights)
