"""Train on a fake GPU: `python -m tests.train.fake_steps CASES`; see test_fake_gpu, which starts it.

Prints, for each case of the file, how often it computed each operation, or the error that it ended with.
"""

import gc
import json
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from arl.config.recipe import Train
from arl.launch.child import exit_immediately
from arl.sync.buckets import make_buckets
from arl.sync.version_buffers import allocate_buckets
from arl.train import sharding
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.gspo import GSPO
from arl.train.algorithms.objective import Objective
from arl.train.learner import Learner
from tests.train.fake_gpu import fake_gpu, fake_ranks
from tests.train.synthetic import batch, packed

OBJECTIVES: dict[str, Objective] = {
    "decoupled": DecoupledPPO(),
    "entropy": DecoupledPPO(entropy_coefficient=0.01),
    "sequences": GSPO(clip_low=0.2, clip_high=0.2),
}
BUCKET_BYTES = 1 << 13
CAPACITY = 100  # tokens


def train(case: dict[str, Any]) -> Counter[str]:
    """Take a step. If the case `hands_over`, copy what a checkpoint holds, and gather the weights as each transport
    does. Return how often each operation was computed."""
    world_size = case.get("world_size", 2)
    objective = OBJECTIVES[case.get("objective", "decoupled")]
    settings = {"dtype": "bfloat16", "minibatches": 1, "clip_norm": 0.5, "ranks": world_size} | case.get("train", {})
    groups = batch(4, groups=case.get("groups", 4), size=case.get("group_size", 2), seed=4)
    shards, _ = packed(groups, settings["minibatches"], CAPACITY, world_size, objective=objective)
    with fake_gpu() as computed, fake_ranks(world_size), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "WORTH_A_COLLECTIVE", 1)  # every block is a unit of its own, as in a real model
        learner = Learner(case["model"], Train.model_validate(settings), objective, version=4)
        learner.step(shards[0])
        check_state(learner)
        if case.get("hands_over"):
            hand_over(learner)
    return computed


def hand_over(learner: Learner) -> None:
    """Copy the state for a checkpoint, and gather the weights for one engine and for many."""
    learner.sharded.training_state()
    buckets = make_buckets(learner.tensors(), BUCKET_BYTES)
    for everywhere in (False, True):
        flats = allocate_buckets(buckets, "device")
        learner.sharded.gather(buckets, flats, everywhere)


def check_state(learner: Learner) -> None:
    """Assert that masters and moments are float32 on the GPU, whatever the type of the computation."""
    sharded = learner.sharded
    for local in sharded._local:
        moments = sharded._optimizer.state[local]
        for tensor in (local, moments["exp_avg"], moments["exp_avg_sq"], moments["step"]):
            assert tensor.is_cuda
            assert tensor.dtype == torch.float32


def main() -> None:
    gc.disable()  # it takes a tenth of the time
    results: dict[str, dict[str, Any]] = {}
    for name, case in json.loads(Path(sys.argv[1]).read_text()).items():
        began = time.perf_counter()
        try:
            results[name] = {"computed": train(case)}
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()[-4000:]}
        results[name]["seconds"] = time.perf_counter() - began
    print(json.dumps(results))
    sys.stdout.flush()
    exit_immediately(0)


if __name__ == "__main__":
    main()
