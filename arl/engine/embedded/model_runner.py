"""Run one forward pass for everything that is open, and sample one token for each row.

rows 0 … n−1 decode, one token each ─┐
the prompts of m new rows, as a tree ┴─► model ─► logits (n + m, V) ─► sample

Each row is sampled with its own parameters and its own random numbers:

logits (n, V) ─► log_softmax(logits / T), recorded ─► top-k and top-p, rarely ─► inverse CDF in float64

The uniform number of a token is a pure hash of its request's seed and its position in the sequence. A request
therefore draws the same tokens alone or in a crowd, and before or after it was interrupted.
"""

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from arl.engine.embedded.request_rows import Rows
from arl.models.prefix_tree import PrefixTree
from arl.models.slot_cache import SlotCache

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


class ModelRunner:
    """Hold a model with the cache of its slots; numpy in and out, whatever the device."""

    def __init__(self, model: PreTrainedModel, slots: int) -> None:
        self._model = model
        self._device = model.device
        self._cache = SlotCache(model.config, slots, model.dtype, model.device)

    @torch.inference_mode()
    def forward(self, rows: Rows, decoded: int, prompts: PrefixTree | None) -> tuple[np.ndarray, np.ndarray]:
        """Compute the next token of every row.

        Args:
            rows: the first `decoded` continue, the others are new
            prompts: the sequences of the new rows, in their order; None without any

        Returns:
            ids (rows.count,) int64 and their logprobs, (rows.count,) float32
        """
        running = np.arange(decoded)
        lengths = rows.length[:decoded]
        cached = lengths - 1  # all but the newest token, which this pass computes
        ids = rows.tokens[running, cached]
        positions = cached
        keep: Tensor | int = 0  # all
        if prompts is not None:
            ids = np.concatenate([ids, prompts.token_ids])
            positions = np.concatenate([positions, prompts.position_ids])
            new = np.arange(rows.count - decoded)
            last = rows.length[decoded : rows.count] - 1
            ends = prompts.paths[new, last]  # where the tree has the last token of each prompt
            scored = np.concatenate([running, decoded + ends])
            keep = self._tensor(scored)
        longest = int(lengths.max(initial=0))
        self._cache.plan(self._tensor(cached), longest, prompts)
        output = self._model(
            input_ids=self._tensor(ids)[None].long(),
            position_ids=self._tensor(positions)[None],
            use_cache=False,
            context=self._cache,
            logits_to_keep=keep,
        )
        return self._sample(rows, output.logits[0])

    def _sample(self, rows: Rows, logits: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Draw one token for each row from logits (rows.count, V); see `forward` for what is returned."""
        n = rows.count
        seeds = rows.seed[:n]
        lengths = rows.length[:n]
        uniform = self._tensor(uniforms(seeds, lengths))
        temperature = self._tensor(rows.temperature[:n])
        truncation = None
        top_k = rows.top_k[:n]
        top_p = rows.top_p[:n]
        if (top_k >= 0).any() or (top_p < 1).any():
            truncation = (self._tensor(top_k), self._tensor(top_p))
        ids, logprobs = sample(logits, temperature, uniform, truncation)
        return ids.cpu().numpy(), logprobs.cpu().numpy()

    def move(self, source: np.ndarray, target: np.ndarray, longest: int) -> None:
        """Copy the first `longest` cached tokens of slots `source` (k,) to slots `target` (k,)."""
        self._cache.move(self._tensor(source), self._tensor(target), longest)

    def clear_cache(self) -> None:
        """Free the cache's memory. No row may be in use."""
        self._cache.clear()
        torch.cuda.empty_cache()  # else torch keeps the memory for later; without a GPU this does nothing

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)
