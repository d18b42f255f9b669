"""Turn episodes into a table for Parquet: one row for each, with its tokens, text, reward and what training computed.

EpisodeRow ─► episode_table ─► pyarrow.Table of SCHEMA
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from arl.data.text_codec import TextCodec
from arl.types import Batch, TrainedTokens, Trajectory, TrajectoryGroup

TOKENS = ("token_ids", "behavior_logprobs", "policy_versions", "loss_mask")  # an entry for each token

# Lists have L entries, one for each token of the trajectory. Of advantages, proximal and current logprobs, entries at
# tokens without a loss are null, and the whole list is null where the step computed none.
SCHEMA = pa.schema(
    {
        "fate": pa.string(),  # trained, or why it was lost
        "trained_at": pa.int64(),  # v of the step; null: lost
        "group_id": pa.int64(),
        "problem_id": pa.string(),
        "sample": pa.int64(),
        "dispatch_version": pa.int64(),
        "dispatch_time": pa.float64(),
        "arrival_version": pa.int64(),
        "arrival_time": pa.float64(),
        "prompt_length": pa.int64(),
        "prompt": pa.string(),  # text of the first prompt_length tokens, with special tokens
        "response": pa.string(),  # text of all other tokens, without special tokens: what the reward function saw
        "answer": pa.string(),  # the problem's
        "reward": pa.float64(),  # as it was trained, shaped; null: not scored
        "unshaped_reward": pa.float64(),  # the weighted sum of the parts, or the one number; null: not scored
        "reward_parts": pa.map_(pa.string(), pa.float64()),  # as the reward function named them; none: one number
        "reward_error": pa.string(),  # why it was graded 0; empty: it was graded
        "truncated": pa.bool_(),
        "advantage": pa.float32(),  # of every loss token; null: lost, no loss token, or one for each token
        "advantages": pa.list_(pa.float32()),  # where advantage.kind gives each loss token its own; else null
        "token_ids": pa.list_(pa.int32()),
        "behavior_logprobs": pa.list_(pa.float32()),
        "policy_versions": pa.list_(pa.int32()),
        "loss_mask": pa.list_(pa.bool_()),
        # log π of version trained_at, under objectives that are centered on it by a forward pass; null for a trajectory
        # that was left out because its advantages are 0, and under ppo and objective.proximal loglinear
        "proximal_logprobs": pa.list_(pa.float32()),
        # log π_θ in the forward that computed the token's loss, when the step had made the updates of its earlier
        # minibatches; null for a trajectory that was left out because its advantages are 0
        "current_logprobs": pa.list_(pa.float32()),
    }
)


class EpisodeRow(Struct, frozen=True):
    """Hold one episode, and what became of it."""

    group: TrajectoryGroup
    sample: int  # its place in the group
    fate: str  # see arl.types
    trained_at: int | None  # the version v of the step that trained it; None: it was lost
    tokens: TrainedTokens | None  # what that step computed of its own loss tokens; None: nothing is known

    @property
    def trajectory(self) -> Trajectory:
        return self.group.trajectories[self.sample]


def group_rows(
    group: TrajectoryGroup,
    fate: str,
    trained_at: int | None,
    tokens: Sequence[TrainedTokens | None] = (),
) -> list[EpisodeRow]:
    """Make a row for each episode of a group; `tokens` are theirs, in order, or empty."""
    of_each = tokens or [None] * len(group.trajectories)
    return [EpisodeRow(group, sample, fate, trained_at, own) for sample, own in enumerate(of_each)]


def split_tokens(batch: Batch, tokens: TrainedTokens | None) -> list[list[TrainedTokens | None]]:
    """Split what a step computed into the parts of its episodes, group by group."""
    groups: list[list[TrainedTokens | None]] = []
    start = 0
    for group in batch.groups:
        own: list[TrainedTokens | None] = []
        for trajectory in group.trajectories:
            end = start + int(trajectory.loss_mask.sum())
            own.append(None if tokens is None else _part_of(tokens, slice(start, end)))
            start = end
        groups.append(own)
    return groups


def _part_of(tokens: TrainedTokens, part: slice) -> TrainedTokens:
    current = tokens.current_logprobs
    proximal = tokens.proximal_logprobs
    return TrainedTokens(
        advantages=tokens.advantages[part],
        per_token=tokens.per_token,
        current_logprobs=None if current is None else current[part],
        proximal_logprobs=None if proximal is None else proximal[part],
    )


def advantage_of(tokens: TrainedTokens | None) -> float | None:
    """Return the one advantage of an episode; None if there is none, or one for each token."""
    if tokens is None or tokens.per_token or not len(tokens.advantages):
        return None
    return float(tokens.advantages[0])


def episode_table(rows: Sequence[EpisodeRow], codec: TextCodec | None) -> pa.Table:
    """Build the table of some episodes; without a codec, prompts and responses are null. NaN becomes null."""
    columns: dict[str, Sequence[Any]] = {
        "fate": [row.fate for row in rows],
        "trained_at": [row.trained_at for row in rows],
        "problem_id": [row.group.problem.id for row in rows],
        "sample": [row.sample for row in rows],
        "prompt": _prompts(rows, codec),
        "response": _responses(rows, codec),
        "answer": [row.group.problem.answer for row in rows],
        "reward_parts": [list(row.trajectory.reward_parts.items()) for row in rows],
        "advantage": [advantage_of(row.tokens) for row in rows],
    }
    for name in ("group_id", "dispatch_version", "dispatch_time", "arrival_version", "arrival_time"):
        columns[name] = [getattr(row.group, name) for row in rows]
    for name in ("reward", "unshaped_reward", "prompt_length", "reward_error", "truncated", *TOKENS):
        columns[name] = [getattr(row.trajectory, name) for row in rows]
    for name in ("advantages", "proximal_logprobs", "current_logprobs"):
        columns[name] = [_computed(row, name) for row in rows]
    arrays = [pa.array(columns[field.name], field.type, from_pandas=True) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _computed(row: EpisodeRow, name: str) -> np.ndarray | None:
    """Spread what the step computed over all tokens, (L,) float32 with NaN elsewhere; None if it computed nothing."""
    tokens = row.tokens
    if tokens is None or (name == "advantages" and not tokens.per_token):
        return None
    values: np.ndarray | None = getattr(tokens, name)
    if values is None or np.isnan(values).all():
        return None
    spread = np.full(len(row.trajectory.token_ids), np.nan, np.float32)
    spread[row.trajectory.loss_mask] = values
    return spread


def _prompts(rows: Sequence[EpisodeRow], codec: TextCodec | None) -> Sequence[str | None]:
    """Decode the prompt of each group once."""
    if codec is None:
        return [None] * len(rows)
    episodes = {row.group.group_id: row.trajectory for row in rows}  # of a group, all begin with the same prompt
    prompt_ids = [one.token_ids[: one.prompt_length].tolist() for one in episodes.values()]
    prompts = dict(zip(episodes, codec.decode_all(prompt_ids, special_tokens=True), strict=True))
    return [prompts[row.group.group_id] for row in rows]


def _responses(rows: Sequence[EpisodeRow], codec: TextCodec | None) -> Sequence[str | None]:
    if codec is None:
        return [None] * len(rows)
    episodes = [row.trajectory for row in rows]
    return codec.decode_all([one.token_ids[one.prompt_length :].tolist() for one in episodes])
