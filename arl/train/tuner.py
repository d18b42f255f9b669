"""Train a model on pairs of prompt and response: the part that the warm-up and `arl sft` share.

pairs ─► LossSequence (response-only) ─► pack_groups ─► −logprob ─► AdamW
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from arl.config.recipe import Train
from arl.data.model_limits import model_flops
from arl.data.tokenizer import HuggingFaceCodec
from arl.errors import TrainerError
from arl.train.micro_batch import pack_groups
from arl.train.packing import COLUMNS, LossSequence
from arl.train.sharded_model import ShardedModel
from arl.train.sharding import init_ranks
from arl.types import Problem

COLLECTIVE_SECONDS = 600.0
RAMP = 50  # optimizer steps
FLOOR = 0.1  # the learning rate at the end of the schedule, as a share of the peak

Pair = tuple[list[int], list[int]]  # prompt tokens, response tokens


class Tuner:
    """Train a model on pairs: one update a step, on all ranks.

    Args:
        path: model directory.
        train: hyper-parameters; the learning rate is given at each step.
    """

    def __init__(self, path: str | Path, train: Train) -> None:
        if train.threads is not None:
            torch.set_num_threads(train.threads)
        self.policy = ShardedModel(path, train, 1.0, init_ranks(COLLECTIVE_SECONDS))
        self._capacity = train.capacity
        self._flops = model_flops(str(path))

    def step(self, pairs: Sequence[Pair], learning_rate: float) -> float:
        """Make one update, on the same pairs on every rank; return −logprob, the mean over their response tokens.

        Raises:
            InputError: a pair longer than train.capacity.
            TrainerError: a loss or gradient that is not finite; the weights are as before.
        """
        groups = [[_loss_sequence(prompt, response)] for prompt, response in pairs]
        of_ranks = pack_groups(groups, self._capacity, dist.get_world_size(), self._flops)
        own = of_ranks[dist.get_rank()]
        num_tokens = sum(len(response) for _, response in pairs)
        total = torch.zeros((), device=self.policy.device)
        for i, batch in enumerate(own):
            logprob, _ = self.policy.score(batch)
            score_of = self.policy.tensor(batch.loss_scores)
            loss = -logprob.index_select(0, score_of).sum() / num_tokens
            self.policy.backward(loss, last=i + 1 == len(own))
            total += loss.detach()
        update = self.policy.update(learning_rate, total)
        if not update.is_finite:
            raise TrainerError(f"{update}: lower the learning rate, or look at the pairs")
        return update.loss


def _loss_sequence(prompt: list[int], response: list[int]) -> LossSequence:
    tokens = prompt + response
    nothing = np.zeros(len(response), np.float32)
    return LossSequence(
        token_ids=np.array(tokens, np.int32),
        loss_at=np.arange(len(prompt), len(tokens)),
        columns={name: nothing.astype(dtype) for name, dtype in COLUMNS.items()},
    )


def encode(codec: HuggingFaceCodec, prompt: str | list[dict[str, str]], response: str) -> Pair:
    """Encode a prompt, and its response with the token that ends it."""
    prompt_tokens = list(codec.encode_problem(Problem(prompt)))
    response_tokens = list(codec.encode(response))
    response_tokens.append(codec.stop_token_ids[0])
    return prompt_tokens, response_tokens


def say(**progress: Any) -> None:
    """Print one line of progress, on rank 0 alone."""
    if dist.get_rank() == 0:
        print(json.dumps(progress), flush=True)
