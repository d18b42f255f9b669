"""Put what the ranks computed of each token back into the order of the batch. Torch-free.

    pack_batch ─► SequencePack.places ─► MicroBatch.places ─► rank: TokenLog ─► TokenLogprobs of each rank
                                                                                                  └► trained_tokens

A place is the index of a loss token among those of the step: one trajectory's after the other's, group by group. The
packer cuts, shares and sorts loss tokens. A place stays with its token, so nothing has to be undone.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from arl.train.packer import Packing, SequenceShard
from arl.types import Batch, TrainedTokens


class TokenLogprobs(Struct, frozen=True):
    """Hold the log-probabilities that one rank computed in a step: N loss tokens, in the order of its micro-batches."""

    places: np.ndarray  # (N,) int32
    current: np.ndarray  # (N,) float32
    proximal: np.ndarray | None = None  # (N,) float32; None: the objective has none


def trained_tokens(
    batch: Batch,
    shards: Sequence[SequenceShard],
    of_ranks: Sequence[TokenLogprobs | None],
    packing: Packing,
) -> TrainedTokens | None:
    """Join what the packer and the ranks know of the T loss tokens of a step; None if nobody asked for places.

    Args:
        shards: what the ranks were given, with places.
        of_ranks: what they returned; None: that rank computed no loss token.
        packing: by which they were packed.
    """
    if not packing.records:
        return None
    num_tokens = sum(int(t.loss_mask.sum()) for group in batch.groups for t in group.trajectories)
    known = [logprobs for logprobs in of_ranks if logprobs is not None]
    return TrainedTokens(
        advantages=_advantages(shards, num_tokens),
        per_token=packing.advantage.per == "token",
        current_logprobs=_in_order([(one.places, one.current) for one in known], num_tokens),
        proximal_logprobs=_in_order(
            [(one.places, one.proximal) for one in known if one.proximal is not None], num_tokens
        ),
    )


def _advantages(shards: Sequence[SequenceShard], num_tokens: int) -> np.ndarray:
    """Return (T,) float32: 0 for what the packer left out, because it leaves out only what has no other advantage."""
    advantages = np.zeros(num_tokens, np.float32)
    for pack in (pack for shard in shards for minibatch in shard.minibatches for pack in minibatch.packs):
        if pack.places is not None:
            advantages[pack.places] = pack.advantages
    return advantages


def _in_order(columns: Sequence[tuple[np.ndarray, np.ndarray]], num_tokens: int) -> np.ndarray | None:
    """Return (T,) float32 with NaN where nothing was computed; None if nothing was computed at all."""
    if not columns:
        return None
    in_order = np.full(num_tokens, np.nan, np.float32)
    for places, numbers in columns:
        in_order[places] = numbers
    return in_order
