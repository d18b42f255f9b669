"""Run one forward pass for everything that is open, and sample one token for each row.

rows 0 … n−1 decode, one token each ─┐
the prompts of m new rows, as a tree ┴─► model ─► logits (n + m, V) ─► sample
"""

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from arl.engine.embedded.request_rows import Rows
from arl.engine.embedded.sampling import sample, uniforms
from arl.models.prefix_tree import PrefixTree
from arl.models.slot_cache import SlotCache


class ModelRunner:
    """Hold a model with the cache of its slots; numpy in and out, whatever the device."""

    def __init__(self, model: PreTrainedModel, slots: int) -> None:
        self.model = model
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
        output = self.model(
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
        if rows.truncating:
            top_k = self._tensor(rows.top_k[:n])
            top_p = self._tensor(rows.top_p[:n])
            truncation = (top_k, top_p)
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
