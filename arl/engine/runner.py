"""One forward pass for everything that is open, and one token sampled for each row of it.

rows 0 … n−1 decode, one token each ─┐
U new prompts, padded to W           ┴─► model ─► logits (n + U, V) ─► a row each ─► sample
"""

import numpy as np
import torch
from transformers import PreTrainedModel

from arl.engine.rows import Rows
from arl.engine.sampling import sample, uniforms
from arl.models.slot_cache import SlotCache


class ModelRunner:
    """A model with the cache of its slots; numpy in and out, whatever the device."""

    def __init__(self, model: PreTrainedModel, slots: int) -> None:
        self.model = model
        self._device = model.device
        self._cache = SlotCache(model.config, slots, model.dtype, model.device)

    @torch.inference_mode()
    def forward(
        self, rows: Rows, decoded: int, prompts: list[np.ndarray], source: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute the next token of every row.

        Args:
            rows: the first `decoded` continue, the others are new
            prompts: U distinct sequences, (L,) int32 each
            source: which of them each new row holds

        Returns:
            ids (rows.count,) int64 and their logprobs, (rows.count,) float32
        """
        lengths, width = rows.length[:decoded], max(map(len, prompts), default=0)
        ids = np.zeros(decoded + len(prompts) * width, np.int64)
        positions = np.empty_like(ids)
        ids[:decoded] = rows.tokens[np.arange(decoded), lengths - 1]
        positions[:decoded] = lengths - 1
        positions[decoded:] = np.tile(np.arange(width), len(prompts))
        keep = np.arange(decoded + len(prompts))
        for i, prompt in enumerate(prompts):
            start = decoded + i * width
            ids[start : start + len(prompt)] = prompt
            keep[decoded + i] = start + len(prompt) - 1
        new = self._tensor(np.array(source, np.int64))
        self._cache.plan(self._tensor(lengths - 1), int(lengths.max(initial=0)), width, new)
        logits = self.model(
            input_ids=self._tensor(ids)[None],
            position_ids=self._tensor(positions)[None],
            use_cache=False,
            context=self._cache,
            logits_to_keep=self._tensor(keep) if prompts else 0,
        ).logits[0]
        if prompts:
            logits = torch.cat((logits[:decoded], logits[decoded:].index_select(0, new)))
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

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)
