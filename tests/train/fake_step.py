"""Take steps on a fake GPU: `python -m tests.train.fake_step MODEL CASES`; see test_fake_gpu, which starts it.

Prints, for each case, the bytes that the plan counts and those that were allocated, at the peak and after the step.
"""

import gc
import json
import sys
from typing import Any

import numpy as np
import pytest

from arl.config.recipe import Train
from arl.data.model_limits import ModelShape
from arl.launch.child import exit_immediately
from arl.models.load import empty_model
from arl.train import sharding
from arl.train.algorithms.ppo import PPO
from arl.train.learner import Learner
from arl.train.micro_batch import MicroBatch, pack_groups
from arl.train.packing import Minibatch, Shard
from arl.train.rank_bytes import ParameterCounts, Workload, rank_bytes
from tests.train.columns import loss_sequence
from tests.train.fake_gpu import fake_gpu, fake_ranks

TOKENS = 512  # of a pack of two sequences; attention of one alone is torch's, which a CPU build decomposes


def minibatch(vocab: int, micro_batches: int) -> Minibatch[MicroBatch]:
    rng = np.random.default_rng(0)
    length = TOKENS // 2 + 1  # the last token is only a target
    loss_at = np.arange(16, length)
    ones = np.ones(len(loss_at), np.float32)
    tokens = rng.integers(0, vocab, (2 * micro_batches, length)).astype(np.int32)
    sequences = [loss_sequence(row, loss_at, advantages=ones, behavior=-5 * ones) for row in tokens]
    packs = pack_groups([sequences], TOKENS, ranks=1)[0]
    assert [len(pack.token_ids) for pack in packs] == [TOKENS] * micro_batches
    return Minibatch(packs, loss_tokens=len(sequences) * len(loss_at), loss_sequences=len(sequences))


def train(path: str, settings: dict[str, Any]) -> dict[str, int]:
    """Take a step, and return the bytes that are planned and those that were allocated."""
    section = Train.model_validate({"dtype": "bfloat16", "minibatches": 1, "ranks": 2} | settings)
    model = empty_model(path)
    given = minibatch(model.config.vocab_size, micro_batches=3)
    work = Workload(TOKENS, accumulates=True, device="cuda")
    planned = rank_bytes(ParameterCounts.of(model), ModelShape.of(model.config), section, work)
    with fake_gpu() as live, fake_ranks(section.ranks), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "WORTH_A_COLLECTIVE", 1 << 14)  # every block is a unit of its own, as in a real model
        update = Learner._update

        def update_unread(learner: Learner, *given: Any) -> None:
            before = live.reads
            update(learner, *given)
            assert live.reads == before or section.dtype == "float16", "an update waits for what the device computes"

        patch.setattr(Learner, "_update", update_unread)
        learner = Learner(path, section, PPO())
        learner.step(Shard(0, (given,)))
        gc.collect()
        found = {"peak": live.peak, "resident": live.now}
        del learner
    return {"planned": planned.peak, "planned_resident": planned.resident, **found}


def main() -> None:
    path, cases = sys.argv[1:]
    print(json.dumps([train(path, settings) for settings in json.loads(cases)]), flush=True)
    exit_immediately(0)


if __name__ == "__main__":
    main()
