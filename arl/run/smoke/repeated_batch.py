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
        lengths = [len(answer.sampled) for answer in group]
        tokens += sum(lengths)
        if made and tokens > MOST_TOKENS:
            break
        made.append(_group(number, group, version))
    return Batch(version, tuple(made))


def random_answers(vocab_size: int) -> list[SampledAnswer]:
    """Return answers of no engine, uniform over the vocabulary, so that a trainer can step without one."""
    rng = np.random.default_rng(0)
    uniform = -math.log(vocab_size)
    answers = []
    for group in range(ENOUGH_GROUPS):
        prompt = rng.integers(0, vocab_size, PROMPT)
        for _ in range(GROUP):
            sampled = rng.integers(0, vocab_size, RESPONSE)
            answer = SampledAnswer(
                group=group,
                prompt=tuple(prompt.tolist()),
                sampled=tuple(sampled.tolist()),
                logprobs=(uniform,) * RESPONSE,
                versions=(0,) * RESPONSE,
            )
            answers.append(answer)
    return answers


def joined(batches: Sequence[Batch]) -> Batch:
    """Join batches of one version, with the groups of each after those of the one before it."""
    groups: list[TrajectoryGroup] = []
    for batch in batches:
        for group in batch.groups:
            numbered = replace(group, group_id=len(groups))
            groups.append(numbered)
    return Batch(batches[0].version, tuple(groups))


def behavior(batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return logprobs, versions and place in the answer of each sampled token, (T,), in the order of TrainedTokens."""
    logprobs = []
    versions = []
    places = []
    for group in batch.groups:
        for trajectory in group.trajectories:
            mask = trajectory.loss_mask
            length = int(mask.sum())
            logprobs.append(trajectory.behavior_logprobs[mask])
            versions.append(trajectory.policy_versions[mask])
            places.append(np.arange(length))
    return (
        np.concatenate(logprobs),
        np.concatenate(versions),
        np.concatenate(places),
    )


async def step(side: TrainerSide, batch: Batch, version: int) -> TrainedStep:
    """Train on `batch` at the trainer's `version`."""
    start = now()
    result = await side.trainer.step(replace(batch, version=version))
    return TrainedStep(result, now() - start)


def median_seconds(steps: Sequence[TrainedStep]) -> float:
    """Return the median of steps, without the first, which warms up, if there are more."""
    warm = steps[1:] or steps
    return statistics.median(one.seconds for one in warm)


def _group(number: int, answers: Sequence[SampledAnswer], version: int) -> TrajectoryGroup:
    trajectories = []
    for i, answer in enumerate(answers):
        reward = float(i % 2)
        trajectories.append(_trajectory(answer, reward))
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
    token_ids = answer.prompt + answer.sampled
    logprobs = (0.0,) * length + answer.logprobs
    versions = (NOT_SAMPLED,) * length + answer.versions
    places = np.arange(len(token_ids))
    return Trajectory(
        token_ids=np.array(token_ids, np.int32),
        behavior_logprobs=np.array(logprobs, np.float32),
        policy_versions=np.array(versions, np.int32),
        loss_mask=places >= length,
        prompt_length=length,
        reward=reward,
        unshaped_reward=reward,
        truncated=True,
    )
