"""What an episode is for its reward and for training: who ended it, shaped rewards, raw parts, masks."""

import asyncio
from collections.abc import Callable

import pytest

from arl import clock
from arl.config.recipe import Reward, Rollout
from arl.rollout.env import Env, Session, single_turn
from arl.rollout.env_watch import EnvWatch
from arl.rollout.episodes import Episodes, Rewards
from arl.types import FinishReason, GenerateRequest, Grade, Increment, Problem, Response, Trajectory
from tests.fakes import NullCodec, NullRewards

BUDGET = 10


class Speaker:
    """An engine that says so many tokens in each turn of episode i and stops, or all that it may."""

    def __init__(self, length_of: Callable[[int], int]) -> None:
        self._length_of = length_of

    async def generate(self, request: GenerateRequest):  # type: ignore[no-untyped-def]
        """See Engine."""
        wanted = self._length_of(int(request.request_id.split(".")[1]))
        count = min(wanted, request.sampling.max_new_tokens)
        reason: FinishReason = "stop" if wanted == count else "length"
        yield Increment((1,) * count, (-1.0,) * count, (0,) * count, reason)


class SlowGrades:
    """Gives 1 or, to those that use up their budget, no grade, after three virtual seconds."""

    async def score(self, problem: Problem, response: Response) -> Grade:
        await asyncio.sleep(3.0)
        if response.num_tokens == BUDGET:
            return Grade(0.0, {}, "broken")
        return Grade(1.0, {"correct": 1.0})


def run(
    env: Env, length_of: Callable[[int], int], rewards: Rewards, size: int, **options: Reward
) -> tuple[tuple[Trajectory, ...], Episodes]:
    """Run one group; its prompt is one token, and NullCodec makes a token of every character."""
    rollout = Rollout(group_size=size, max_new_tokens=BUDGET)
    engine = Speaker(length_of)
    watch = EnvWatch("tests:env")
    episodes = Episodes(engine, NullCodec(), rewards, env, watch, rollout, seed=0, max_length=20, **options)  # type: ignore[arg-type]

    async def main() -> tuple[Trajectory, ...]:
        problem = Problem("p")
        return await episodes.run(problem, episodes.open("g0", problem))

    return clock.run(main, virtual=True), episodes


def turns(*texts: str, limit: int | None = None) -> Env:
    """Take a turn before each of `texts`, and one after the last, as long as the episode is not over."""

    async def env(problem: Problem, session: Session) -> None:
        await session.generate(limit)
        for text in texts:
            session.extend(text)
            if session.is_over:
                return
            await session.generate(limit)

    return env


@pytest.mark.parametrize(
    ("env", "length", "truncated", "why"),
    [
        (turns(), 3, False, "the policy stopped"),
        (turns(), 10, False, "the policy stopped with its last token"),
        (turns(), 11, True, "the budget cut the policy off"),
        (turns(limit=2), 5, False, "the env ended the episode after a turn of limited length"),
        (turns(limit=10), 11, True, "the limit of the turn was the whole budget"),
        (turns("?"), 3, False, "the policy stopped in its second turn"),
        (turns("?"), 8, True, "the budget cut the policy off in its second turn"),
        (turns("?"), 10, True, "the policy had stopped, and has no budget to answer the env"),
        (turns("?" * 99), 3, True, "the policy had stopped, and the env's text does not fit"),
        (turns("?" * 16), 3, True, "the env's text fills the context"),
    ],
)
def test_truncated_says_who_ended_the_episode(env: Env, length: int, truncated: bool, why: str) -> None:
    ((trajectory,), _) = run(env, lambda _: length, NullRewards(), 1)
    assert trajectory.truncated is truncated, why


def graded(shaping: Reward) -> tuple[tuple[Trajectory, ...], Episodes]:
    """Run a group whose episode i says i + 1 tokens; its last two are truncated."""
    return run(single_turn, lambda i: i + 1, SlowGrades(), 12, shaping=shaping)


def test_training_learns_from_shaped_rewards_and_parts_and_the_reward_itself_are_kept_as_well() -> None:
    trajectories, _ = graded(Reward.model_validate({"scale": 10.0, "bias": -0.5, "overlong": {"buffer": 4}}))
    rewards = [trajectory.reward for trajectory in trajectories]
    assert rewards[:6] == [5.0] * 6
    assert rewards[6:9] == [4.75, 4.5, 4.25]
    assert rewards[9:] == [-6.0] * 3  # no grade counts as raw 0, so breaking the grader never pays
    assert [t.unshaped_reward for t in trajectories] == [1.0] * 9 + [0.0] * 3
    assert [t.reward_parts for t in trajectories] == [{"correct": 1.0}] * 9 + [{}] * 3
    assert [t.reward_error for t in trajectories] == [""] * 9 + ["broken"] * 3


def test_truncated_episodes_are_masked_and_keep_their_reward_and_a_group_waits_for_its_grades() -> None:
    trajectories, episodes = graded(Reward(mask_truncated=True))
    assert [bool(t.loss_mask.any()) for t in trajectories] == [True] * 10 + [False] * 2
    assert [t.reward for t in trajectories] == [1.0] * 9 + [0.0] * 3
    assert trajectories[-1].truncated
    assert trajectories[-1].num_sampled == BUDGET
    assert episodes.meter.reward_wait_seconds == pytest.approx(3.0)  # from the end of its last episode
    assert episodes.meter.num_graded == 1
