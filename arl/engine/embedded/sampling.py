"""Sample for a whole batch at once, each row with its own parameters and its own random numbers.

logits (n, V) ─► log_softmax(logits / T), recorded ─► top-k and top-p, rarely ─► inverse CDF in float64

The uniform number of a token is a pure hash of its request's seed and its position in the sequence. A request
therefore draws the same tokens alone or in a crowd, and before or after it was interrupted.
"""

import numpy as np
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64 (Steele, Lea and Flood, OOPSLA 2014): (n,) uint64 ─► (n,) uint64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """seeds (n,) uint64 and positions (n,) int64 ─► (n,) float64 in [0, 1), at most 1 − 2⁻⁵²."""
    mixed = _mix(_mix(seeds + _GOLDEN) + positions.astype(np.uint64) * _GOLDEN)
    return np.asarray((mixed >> np.uint64(12)) * 2.0**-52)


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    uniform: torch.Tensor,
    truncation: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row.

    Args:
        logits: (n, V), any float type
        temperature: (n,) float32, positive
        uniform: (n,) float64 in [0, 1 − 2⁻⁵²]
        truncation: top_k (n,) int64, −1 for all, and top_p (n,) float32; None when no row truncates

    Returns:
        token ids (n,) int64, and their log_softmax(logits / T) before truncation, (n,) float32
    """
    logprobs = torch.log_softmax(logits.float() / temperature[:, None], dim=-1)
    weights = logprobs.double().exp()
    if truncation is not None:
        weights = _truncate(weights, *truncation)
    cdf = weights.cumsum(dim=-1)
    # uniform · total stays below total in float64, so the first entry above it exists and has a weight.
    # A row of NaNs has no such entry; its NaN logprob tells.
    ids = torch.searchsorted(cdf, uniform[:, None] * cdf[:, -1:], right=True).clamp_(max=cdf.shape[1] - 1)
    return ids[:, 0], logprobs.gather(1, ids)[:, 0]


def _truncate(weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Zero what top-k or top-p drops, as SGLang does: a token stays while less than top_p lies before it."""
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(weights.shape[1], device=weights.device)
    before = ordered.cumsum(dim=-1) - ordered
    drop = (rank >= torch.where(top_k < 0, weights.shape[1], top_k)[:, None]) | (before > top_p[:, None])
    return torch.zeros_like(weights).scatter_(1, order, ordered.masked_fill(drop, 0.0))
