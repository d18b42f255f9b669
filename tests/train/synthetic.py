"""Batches with the quickstart's lengths, made without an engine."""

import random

import numpy as np

from arl.config.recipe import Train
from arl.data.model_limits import Flops
from arl.tasks import running_checksum
from arl.train.algorithms.advantage import GRPO, Advantage
from arl.train.algorithms.decoupled_ppo import DecoupledPPO
from arl.train.algorithms.objective import Objective
from arl.train.micro_batch import MicroBatch, join_shard, pack_sizes, packing_report
from arl.train.packing import BY_TOKENS, Packing, Shard, pack_batch
from arl.types import Batch, Trajectory, TrajectoryGroup

BOS, EOS = 14, 15


def encode(text: str) -> list[int]:
    return [running_checksum.CHARACTERS.index(c) for c in text]


def trajectory(prompt: list[int], response: list[int], reward: float, version: int, rng: random.Random) -> Trajectory:
    length, p = len(prompt) + len(response), len(prompt)
    sampled = np.arange(length) >= p
    return Trajectory(
        token_ids=np.array(prompt + response, np.int32),
        behavior_logprobs=np.where(sampled, [-rng.uniform(0.5, 4) for _ in range(length)], 0).astype(np.float32),
        policy_versions=np.where(sampled, version, -1).astype(np.int32),
        loss_mask=sampled,
        prompt_length=p,
        reward=reward,
        unshaped_reward=reward,
        truncated=False,
    )


def batch(version: int = 4, groups: int = 32, size: int = 8, seed: int = 0, max_age: int = 4) -> Batch:
    """Noisy demonstrations of the running checksum with random rewards, ages 0..max_age."""
    rng = random.Random(seed)
    made = []
    for g in range(groups):
        problem = running_checksum.draw_problem(rng)
        prompt = [BOS, *encode(str(problem.prompt))]
        trajectories = tuple(
            trajectory(
                prompt,
                [*encode(running_checksum.demonstrate(problem, rng, blurt=0.4, slip=0.3)), EOS],
                float(rng.random() < 0.5),
                version - rng.randint(0, min(max_age, version)),
                rng,
            )
            for _ in range(size)
        )
        made.append(TrajectoryGroup(g, problem, trajectories, version, 0.0, version, 0.0))
    return Batch(version, tuple(made))


def packed(
    given: Batch,
    minibatches: int,
    capacity: int = 16_384,
    ranks: int = 1,
    *,
    flops: Flops = BY_TOKENS,
    objective: Objective | None = None,
    advantage: Advantage | None = None,
) -> tuple[tuple[Shard[MicroBatch], ...], dict[str, float]]:
    """Pack and join as a run of decoupled PPO with GRPO's advantages does, unless others are given."""
    train = Train(dtype="float32", learning_rate=1.5e-4, minibatches=minibatches, capacity=capacity)
    packing = Packing(train, objective or DecoupledPPO(), advantage or GRPO(), ranks=ranks, flops=flops)
    chosen, report = pack_batch(given, packing)
    shards = tuple(join_shard(shard) for shard in chosen)
    sizes = [pack_sizes(shard, flops) for shard in shards]
    return shards, report | packing_report(given, sizes, packing)
