"""Train on a fake GPU: `python -m tests.train.fake_steps CASES`; see test_fake_gpu, which starts it.

Prints, for each case of the file, how often it computed each operation, or the error that it ended with.
"""

import gc
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from arl.config.recipe import Train
from arl.kernels import head, triton_rows
from arl.kernels.linear_policy_loss import linear_policy_loss
from arl.launch.child import leave
from arl.sync.bucket_memory import allocate_buckets
from arl.sync.buckets import make_buckets
from arl.train import sharded_model, sharding
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.gspo import GSPO
from arl.train.algorithms.objective import Objective
from arl.train.learner import Learner
from arl.train.sharded_model import ShardedModel
from tests.train.fake_gpu import fake_gpu, fake_ranks
from tests.train.synthetic import batch, packed

OBJECTIVES: dict[str, Objective] = {
    "decoupled": DecoupledPPO(),
    "entropy": DecoupledPPO(entropy_coefficient=0.01),
    "sequences": GSPO(clip_low=0.2, clip_high=0.2),
}
BUCKET_BYTES = 1 << 13
CAPACITY = 100  # tokens


def columns_stay_on_the_cpu(patch: pytest.MonkeyPatch) -> None:
    def tensor(self: ShardedModel, array: Any) -> Tensor:
        made = torch.from_numpy(array)
        if array.dtype.kind == "i":
            return made.to(self.device, torch.int64)
        return made

    patch.setattr(ShardedModel, "tensor", tensor)


def the_head_is_float32(patch: pytest.MonkeyPatch) -> None:
    def loss(hidden: Tensor, weight: Tensor, *given: Any) -> Any:
        return linear_policy_loss(hidden, weight.float(), *given)

    patch.setattr("arl.kernels.linear_policy_loss.check_head", lambda *_: None)
    patch.setattr(sharded_model, "linear_policy_loss", loss)


def sums_of_the_head_are_bfloat16(patch: pytest.MonkeyPatch) -> None:
    make = head.HeadGradient.__init__

    def init(self: head.HeadGradient, *given: Any, **told: Any) -> None:
        make(self, *given, **told)
        if self.weight is not None:
            self.weight = self.weight.bfloat16()
        self._has_sum = True

    def add(self: head.HeadGradient, sums: Tensor, dlogits: Tensor, hidden: Tensor) -> None:
        torch.addmm(sums, dlogits.T, hidden, out_dtype=torch.float32, out=sums)

    patch.setattr(head.HeadGradient, "__init__", init)
    patch.setattr(head.HeadGradient, "_add_to_weight", add)


def sums_are_reduced_on_the_cpu(patch: pytest.MonkeyPatch) -> None:
    products = ShardedModel._products
    patch.setattr(ShardedModel, "_products", lambda *given: products(*given).cpu())


def a_kernel_gets_int32_targets(patch: pytest.MonkeyPatch) -> None:
    launch = triton_rows.row_stats
    patch.setattr(triton_rows, "row_stats", lambda logits, targets, *given: launch(logits, targets.int(), *given))


def ranks_reduce_on_the_cpu(patch: pytest.MonkeyPatch) -> None:
    reduce = dist.all_reduce
    patch.setattr(dist, "all_reduce", lambda tensor, *given: reduce(tensor.cpu(), *given))


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    fault.__name__: fault
    for fault in (
        columns_stay_on_the_cpu,
        the_head_is_float32,
        sums_of_the_head_are_bfloat16,
        sums_are_reduced_on_the_cpu,
        a_kernel_gets_int32_targets,
        ranks_reduce_on_the_cpu,
    )
}


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
        if fault := case.get("fault"):
            FAULTS[fault](patch)
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
    leave(0)


if __name__ == "__main__":
    main()
