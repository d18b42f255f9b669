"""Train on answers of the engines: one batch several times, whose loss must fall, with the logprobs of each token.

answers ─► Batch, rewards 0 and 1 in turn within a group ─► TrainerClient.step ─► current logprobs, in order
"""

import math
import statistics
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from arl.clock import now
from arl.run.smoke.busy_engines import ENOUGH_GROUPS, GROUP, PROMPT, RESPONSE, SampledAnswer
from arl.run.smoke.smoke_sides import TrainerSide
from arl.types import NOT_SAMPLED, Batch, Problem, StepResult, TrainedTokens, Trajectory, TrajectoryGroup

MOST_TOKENS = 4096  # sampled ones of a batch, so that a step on a CPU takes a second


class TrainedStep(Struct, frozen=True):
    """Hold what one step did."""

    result: StepResult
    seconds: float  # packing and the copy of the weights included

    @property
    def tokens(self) -> TrainedTokens:
        """Return what was computed of each token; the recipe of a trial asks for it."""
        assert self.result.tokens is not None
        return self.result.tokens

    @property
    def loss(self) -> float:
        """Return −mean(advantage · current logprob), whose gradient at the sampling weights is the policy's."""
        current = self.tokens.current_logprobs
        assert current is not None
        return float(-np.nanmean(self.tokens.advantages * current))

    def number(self, name: str) -> float | None:
        """Return a metric that is one number; None: the step has none."""
        value = self.result.metrics.get(name)
        return None if value is None or isinstance(value, list) else float(value)


def make_batch(answers: Sequence[SampledAnswer], version: int) -> Batch:
    """Make a batch of whole groups, of at most MOST_TOKENS sampled tokens and at least one group.

    Args:
        version: the trainer's.
    """
    groups: dict[int, list[SampledAnswer]] = {}
    for answer in answers:
        groups.setdefault(answer.group, []).append(answer)
    made: list[TrajectoryGroup] = []
    tokens = 0
    for number, group in groups.items():
        tokens += sum(len(answer.sampled) for answer in group)
        if made and tokens > MOST_TOKENS:
            break
        made.append(_group(number, group, version))
    return Batch(version, tuple(made))


def random_answers(vocab_size: int) -> list[SampledAnswer]:
    """Return answers of no engine, uniform over the vocabulary, so that a trainer can step without one."""
    drawn = np.random.default_rng(0).integers(0, vocab_size, (ENOUGH_GROUPS, GROUP, PROMPT + RESPONSE))
    answers = []
    for group in range(ENOUGH_GROUPS):
        prompt = tuple(drawn[group, 0, :PROMPT].tolist())
        for member in range(GROUP):
            sampled = tuple(drawn[group, member, PROMPT:].tolist())
            logprobs = (-math.log(vocab_size),) * RESPONSE
            answers.append(SampledAnswer(group, prompt, sampled, logprobs, (0,) * RESPONSE))
    return answers


def joined(batches: Sequence[Batch]) -> Batch:
    """Join batches of one version, with the groups of each after those of the one before it."""
    groups = [group for batch in batches for group in batch.groups]
    numbered = tuple(replace(group, group_id=number) for number, group in enumerate(groups))
    return Batch(batches[0].version, numbered)


def behavior(batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return logprobs, versions and place in the answer of each sampled token, (T,), in the order of TrainedTokens."""
    trajectories = [trajectory for group in batch.groups for trajectory in group.trajectories]
    logprobs = [one.behavior_logprobs[one.loss_mask] for one in trajectories]
    versions = [one.policy_versions[one.loss_mask] for one in trajectories]
    places = [np.arange(int(one.loss_mask.sum())) for one in trajectories]
    return np.concatenate(logprobs), np.concatenate(versions), np.concatenate(places)


async def step(side: TrainerSide, batch: Batch, version: int) -> TrainedStep:
    """Train on `batch` at the trainer's `version`."""
    start = now()
    result = await side.trainer.step(replace(batch, version=version))
    return TrainedStep(result, now() - start)


def median_seconds(steps: Sequence[TrainedStep]) -> float:
    """Return the median of steps, without the first, which warms up, if there are more."""
    return statistics.median(one.seconds for one in steps[1:] or steps)


def _group(number: int, answers: Sequence[SampledAnswer], version: int) -> TrajectoryGroup:
    trajectories = [_trajectory(answer, reward=float(i % 2)) for i, answer in enumerate(answers)]
    return TrajectoryGroup(
        group_id=number,
        problem=Problem(str(number)),
        trajectories=tuple(trajectories),
        dispatch_version=version,
        dispatch_time=0.0,
        arrival_version=version,
        arrival_time=0.0,
    )


def _trajectory(answer: SampledAnswer, reward: float) -> Trajectory:
    length = len(answer.prompt)
    padding = np.zeros(length, np.float32)
    not_sampled = np.full(length, NOT_SAMPLED, np.int32)
    is_sampled = np.arange(length + len(answer.sampled)) >= length
    return Trajectory(
        token_ids=np.array(answer.prompt + answer.sampled, np.int32),
        behavior_logprobs=np.concatenate([padding, np.array(answer.logprobs, np.float32)]),
        policy_versions=np.concatenate([not_sampled, np.array(answer.versions, np.int32)]),
        loss_mask=is_sampled,
        prompt_length=length,
        reward=reward,
        unshaped_reward=reward,
        truncated=True,
    )
