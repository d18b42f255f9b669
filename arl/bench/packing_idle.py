"""Measure how long ranks are idle for the packing of a large step: part of `arl bench packing`.

    Batch ─► pack_batch ─► encode, for each rank ─► decode ─► join the first micro-batch ─► ranks compute
                                                            └► join the others, while ranks compute

All parts run one after the other on one core here. In a run the last two are on the ranks' own cores. It is compared
with joining every micro-batch before the ranks start, which takes the sum of all joins more.
"""

import math
import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from arl.data.model_limits import Flops
from arl.train import channel
from arl.train.algorithms.grpo import GRPO
from arl.train.channel import Step
from arl.train.micro_batch import join
from arl.train.packer import Packing, pack_batch
from arl.types import NOT_SAMPLED, Batch, Problem, Trajectory, TrajectoryGroup

T = TypeVar("T")
TOKENS = 3_500_000  # of a step
RANKS = 8
MINIBATCHES = 4
TOKENS_PER_S = 25_000  # of a rank: the goal for a 0.6B model on an H100
VOCAB = 151_936

# Episodes of a group, tokens of a prompt, and the lognormal tokens of a response: median, sigma, longest.
KINDS = {
    "16 of about 8,000": (16, 256, 6400, 0.7, 27_000),
    "8 of about 330": (8, 100, 200, 0.5, 1024),
}


def bench_idle(capacity: int, flops: Flops, repeats: int, tokens: int = TOKENS) -> list[dict[str, Any]]:
    """Measure each kind of batch: medians over `repeats`, seconds of one core."""
    packing = Packing(
        minibatches=MINIBATCHES,
        capacity=capacity,
        ranks=RANKS,
        advantage=GRPO(),
        leaves_out_zeros=True,
        flops=flops,
        records=True,
    )
    rows = []
    for kind in KINDS:
        batch = _draw(kind, tokens)
        parts = [_measure(batch, packing) for _ in range(repeats)]
        medians = {name: statistics.median(part[name] for part in parts) for name in parts[0]}
        rows.append(_row(kind, batch, medians))
    return rows


def _row(kind: str, batch: Batch, seconds: dict[str, float]) -> dict[str, Any]:
    num_tokens = sum(len(t.token_ids) for group in batch.groups for t in group.trajectories)
    step_seconds = num_tokens / (RANKS * TOKENS_PER_S)
    idle = sum(seconds[name] for name in ("pack_s", "encode_s", "decode_s", "first_join_s"))
    without = idle - seconds["first_join_s"] + seconds["all_joins_s"]
    return {
        "episodes": kind,
        "tokens": num_tokens,
        "groups": len(batch.groups),
        **{name: round(value, 4) for name, value in seconds.items()},
        "idle_s": round(idle, 4),
        "step_s": round(step_seconds, 2),
        "idle_to_step": round(idle / step_seconds, 4),
        "idle_to_joined_before": round(idle / without, 4),
    }


def _measure(batch: Batch, packing: Packing) -> dict[str, float]:
    pack_s, (shards, _) = _timed(lambda: pack_batch(batch, packing))
    encode_s, messages = _timed(lambda: [channel.encode(Step(shard)) for shard in shards])
    decode_s, received = _timed(lambda: channel.decode_to_rank(messages[0]))
    assert isinstance(received, Step)
    first_join_s, _ = _timed(lambda: join(received.shard.minibatches[1].packs[0]))
    packs = [pack for shard in shards for minibatch in shard.minibatches for pack in minibatch.packs]
    all_joins_s, _ = _timed(lambda: [join(pack) for pack in packs])
    return {
        "pack_s": pack_s,
        "encode_s": encode_s,
        "decode_s": decode_s,
        "first_join_s": first_join_s,
        "all_joins_s": all_joins_s,
    }


def _timed(function: Callable[[], T]) -> tuple[float, T]:
    """Call a function; return its seconds of processor time, which other users of the machine do not lengthen."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def _draw(kind: str, tokens: int) -> Batch:
    """Draw groups until they have `tokens` tokens and the minibatches divide them."""
    rng = np.random.default_rng(0)
    groups: list[TrajectoryGroup] = []
    drawn = 0
    while drawn < tokens or len(groups) % MINIBATCHES:
        trajectories = _draw_group(kind, rng)
        drawn += sum(len(t.token_ids) for t in trajectories)
        group = TrajectoryGroup(
            group_id=len(groups),
            problem=Problem("drawn"),
            trajectories=trajectories,
            dispatch_version=0,
            dispatch_time=0.0,
            arrival_version=0,
            arrival_time=0.0,
        )
        groups.append(group)
    return Batch(0, tuple(groups))


def _draw_group(kind: str, rng: np.random.Generator) -> tuple[Trajectory, ...]:
    size, prompt_length, median, sigma, longest = KINDS[kind]
    prompt = rng.integers(0, VOCAB, prompt_length)
    trajectories = []
    for _ in range(size):
        length = min(longest, max(1, int(rng.lognormal(math.log(median), sigma))))
        response = rng.integers(0, VOCAB, length)
        tokens = np.concatenate([prompt, response]).astype(np.int32)
        is_sampled = np.arange(len(tokens)) >= prompt_length
        reward = float(rng.integers(2))
        trajectory = Trajectory(
            token_ids=tokens,
            behavior_logprobs=np.where(is_sampled, -1, 0).astype(np.float32),
            policy_versions=np.where(is_sampled, 0, NOT_SAMPLED).astype(np.int32),
            loss_mask=is_sampled,
            prompt_length=prompt_length,
            reward=reward,
            unshaped_reward=reward,
            truncated=False,
        )
        trajectories.append(trajectory)
    return tuple(trajectories)
