"""Run one forward pass for everything that is open, and sample one token for each row.

rows 0 … n−1 decode, one token each ─┐
the prompts of m new rows, as a tree ┴─► model ─► logits (n + m, V) ─► sample
"""

import numpy as np
import torch
from transformers import PreTrainedModel

from arl.engine.embedded.request_rows import Rows
from arl.engine.embedded.sampling import sample, uniforms
from arl.models.prefix_tree import PrefixTree
from arl.models.slot_cache import SlotCache


class ModelRunner:
    """A model with the cache of its slots; numpy in and out, whatever the device."""

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
        lengths = rows.length[:decoded]
        positions = lengths - 1
        ids = rows.tokens[np.arange(decoded), positions]
        keep: torch.Tensor | int = 0  # all
        if prompts is not None:
            ids = np.concatenate([ids, prompts.token_ids])
            positions = np.concatenate([positions, prompts.position_ids])
            ends = prompts.paths[np.arange(rows.count - decoded), rows.length[decoded : rows.count] - 1]
            keep = self._tensor(np.concatenate([np.arange(decoded), decoded + ends]))
        self._cache.plan(self._tensor(lengths - 1), int(lengths.max(initial=0)), prompts)
        logits = self.model(
            input_ids=self._tensor(ids)[None].long(),
            position_ids=self._tensor(positions)[None],
            use_cache=False,
            context=self._cache,
            logits_to_keep=keep,
        ).logits[0]
        return self._sample(rows, logits)

    def _sample(self, rows: Rows, logits: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        n = rows.count
        truncation = None
        if rows.truncating:
            truncation = (self._tensor(rows.top_k[:n]), self._tensor(rows.top_p[:n]))
        uniform = self._tensor(uniforms(rows.seed[:n], rows.length[:n]))
        ids, logprobs = sample(logits, self._tensor(rows.temperature[:n]), uniform, truncation)
        return ids.cpu().numpy(), logprobs.cpu().numpy()

    def move(self, source: np.ndarray, target: np.ndarray, longest: int) -> None:
        """Copy the first `longest` cached tokens of slots `source` (k,) to slots `target` (k,)."""
        self._cache.move(self._tensor(source), self._tensor(target), longest)

    def clear_cache(self) -> None:
        """Free the cache's memory; no row is in use."""
        self._cache.clear()
        torch.cuda.empty_cache()  # else torch keeps the memory for later; without a GPU this does nothing

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
