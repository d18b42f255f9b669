"""Train one rank in this process, and compare its weights and logprobs."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from arl.config.recipe import Train
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.objective import Objective
from arl.train.learner import Learner
from arl.train.micro_batch import MicroBatch, pack_groups
from arl.train.packing import LossSequence, Minibatch, Shard
from arl.train.placed_batch import place_batch
from arl.types import Batch, Trajectory
from tests.train.synthetic import packed


def learner(model: Path, objective: Objective | None = None, **train: Any) -> Learner:
    settings = {"minibatches": 2, "dtype": "float32", "learning_rate": 1.5e-4} | train
    return Learner(model, Train.model_validate(settings), objective or DecoupledPPO(), version=4)


def shard_of(
    given: Batch, minibatches: int = 2, capacity: int = 16_384, objective: Objective | None = None
) -> Shard[MicroBatch]:
    (shard,), _ = packed(given, minibatches, capacity, objective=objective)
    return shard


def weights(trained: Learner) -> dict[str, torch.Tensor]:
    return trained.policy.full_state(torch.float32)


def assert_same_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float) -> None:
    for name, weight in a.items():
        torch.testing.assert_close(weight, b[name], rtol=0, atol=tolerance, msg=name)


def logprobs(trained: Learner, sequences: list[LossSequence]) -> torch.Tensor:
    """Score the loss tokens of one pack, (N,)."""
    ((pack,),) = pack_groups([sequences], 16_384, ranks=1)
    with torch.no_grad():
        logprob, _ = trained.policy.score(place_batch(pack, trained.policy.device))
    return logprob[torch.from_numpy(pack.loss_scores).long()]


def with_advantage(trajectory: Trajectory, advantage: float) -> LossSequence:
    at = np.flatnonzero(trajectory.loss_mask)
    columns = {
        "behavior_logprobs": trajectory.behavior_logprobs[at],
        "policy_versions": trajectory.policy_versions[at],
        "advantages": np.full(len(at), advantage, np.float32),
    }
    return LossSequence(trajectory.token_ids, at, columns)


def rewarded(given: Batch) -> list[LossSequence]:
    chosen = [t for g in given.groups for t in g.trajectories if t.reward == 1.0]
    return [with_advantage(t, 1.0) for t in chosen]


def on_policy(trained: Learner, given: Batch) -> Batch:
    """The same trajectories with the logprobs that the learner itself gives them."""
    groups = []
    for g in given.groups:
        trajectories = []
        for t in g.trajectories:
            recorded = t.behavior_logprobs.copy()
            recorded[t.loss_mask] = logprobs(trained, [with_advantage(t, 1.0)]).numpy()
            versions = np.where(t.loss_mask, given.version, -1).astype(np.int32)
            trajectories.append(msgspec.structs.replace(t, behavior_logprobs=recorded, policy_versions=versions))
        groups.append(msgspec.structs.replace(g, trajectories=tuple(trajectories)))
    return Batch(given.version, tuple(groups))


def gradient_of(learner: Learner, minibatch: Minibatch[MicroBatch]) -> tuple[float, dict[str, torch.Tensor]]:
    """Return loss and gradient of one rank; the weights stay as they are."""
    sharded = learner.policy
    loss = learner._backward(minibatch, [{}] * len(minibatch.micro_batches))
    return float(loss), dict(zip(sharded._shards, sharded.take_gradient(), strict=True))
