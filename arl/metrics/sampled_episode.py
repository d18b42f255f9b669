"""Show single episodes to a person: what was asked and said, and what it earned.

Batch ─► choose_samples ─► SampledEpisode ─► trackers          trajectories/*.parquet ─► SampledEpisode ─► arl samples
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from arl.data.text_codec import TextCodec
from arl.metrics.batch import is_right
from arl.metrics.episode_table import EpisodeRow, advantage_of, group_rows, split_tokens
from arl.types import NOT_SAMPLED, TRAINED, Batch, StepResult


class SampledEpisode(Struct, frozen=True, kw_only=True):
    """Hold one episode as text. Its `step` is that of metrics.jsonl: training steps finished with the one that used it.

    >>> sample = SampledEpisode(fate="trained", step=5, group_id=7, sample=0, problem_id="4c81b2de2c0b",
    ...     prompt="2 + 2 =", response="5", answer="4", reward=-5.0, unshaped_reward=0.0,
    ...     parts={"correct": 0.0, "format": 1.0}, advantage=-0.35, length=2,
    ...     oldest_version=3, newest_version=4, truncated=False)
    >>> sample.age, sample.is_right
    (1, False)
    """

    fate: str  # trained, or why it was lost
    step: int | None  # v + 1; None: it was lost
    group_id: int
    sample: int  # its place in the group
    problem_id: str
    prompt: str  # what the model saw, with special tokens
    response: str  # without special tokens: what the reward function saw
    answer: str
    reward: float | None  # as it was trained, shaped; None: not scored
    unshaped_reward: float | None
    parts: Mapping[str, float]  # of the reward
    error: str = ""  # why it was graded 0
    advantage: float | None = None  # None: unknown, or one for each token
    length: int  # tokens that the policy sampled
    oldest_version: int | None  # that sampled one of its tokens; None: it has none
    newest_version: int | None
    truncated: bool

    @property
    def age(self) -> int | None:
        """Return the age of its oldest token when it was trained, versions; None: lost, or without a token."""
        if self.step is None or self.oldest_version is None:
            return None
        return self.step - 1 - self.oldest_version

    @property
    def is_right(self) -> bool | None:
        """Return whether it counts as right (arl.metrics.names); None: not scored."""
        return None if self.unshaped_reward is None else is_right(self.unshaped_reward, self.parts)


def choose_samples(batch: Batch, result: StepResult, count: int, codec: TextCodec) -> list[SampledEpisode]:
    """Choose `count` episodes of a step, spread over its groups and over the places in a group."""
    tokens = split_tokens(batch, result.tokens)
    rows = []
    count = min(count, sum(len(group.trajectories) for group in batch.groups))
    for i in range(count):
        place = i * len(batch.groups) // count
        of_group = group_rows(batch.groups[place], TRAINED, batch.version, tokens[place])
        rows.append(of_group[i % len(of_group)])
    return _samples(rows, codec)


def _samples(rows: Sequence[EpisodeRow], codec: TextCodec) -> list[SampledEpisode]:
    lengths = [row.trajectory.prompt_length for row in rows]
    ids = [row.trajectory.token_ids.tolist() for row in rows]
    prompts = codec.decode_all([own[:n] for own, n in zip(ids, lengths, strict=True)], special_tokens=True)
    responses = codec.decode_all([own[n:] for own, n in zip(ids, lengths, strict=True)])
    return list(map(_sample, rows, prompts, responses))


def _sample(row: EpisodeRow, prompt: str, response: str) -> SampledEpisode:
    trajectory = row.trajectory
    versions = [version for version in trajectory.policy_versions.tolist() if version != NOT_SAMPLED]
    assert row.trained_at is not None, "trackers are shown trained episodes"
    return SampledEpisode(
        fate=row.fate,
        step=row.trained_at + 1,
        group_id=row.group.group_id,
        sample=row.sample,
        problem_id=row.group.problem.id,
        prompt=prompt,
        response=response,
        answer=row.group.problem.answer,
        reward=trajectory.reward,
        unshaped_reward=trajectory.unshaped_reward,
        parts=trajectory.reward_parts,
        error=trajectory.reward_error,
        advantage=advantage_of(row.tokens),
        length=len(versions),
        oldest_version=min(versions, default=None),
        newest_version=max(versions, default=None),
        truncated=trajectory.truncated,
    )
