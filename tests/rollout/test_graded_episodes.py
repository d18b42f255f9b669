"""What training sees of graded episodes: shaped rewards, raw parts, masks; and what an evaluation sees."""

import asyncio

import pytest

from arl import clock
from arl.config.recipe import Reward, Rollout
from arl.engine.base import Engine
from arl.rollout.env import single_turn
from arl.rollout.episodes import Episodes
from arl.types import (
    FinishReason,
    GenerateRequest,
    Grade,
    Increment,
    Problem,
    Response,
    Trajectory,
)
from tests.fakes import NullCodec

BUDGET = 10


class Talker:
    """An engine whose episode i says i + 1 tokens and stops; its last ones are cut off at the budget."""

    async def generate(self, request: GenerateRequest):  # type: ignore[no-untyped-def]
        """See Engine."""
        wanted = 1 + int(request.request_id.split(".")[1])
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


def run(shaping: Reward) -> tuple[tuple[Trajectory, ...], Episodes]:
    """Run one group, whose last two episodes are truncated."""
    rollout = Rollout(group_size=12, max_new_tokens=BUDGET)
    engine: Engine = Talker()  # type: ignore[assignment]
    episodes = Episodes(
        engine, NullCodec(), SlowGrades(), single_turn, rollout, seed=0, max_length=100, shaping=shaping
    )

    async def main() -> tuple[Trajectory, ...]:
        problem = Problem("p")
        return await episodes.run(problem, episodes.open("g0", problem))

    return clock.run(main, virtual=True), episodes


def test_training_learns_from_shaped_rewards_and_parts_and_the_reward_itself_are_kept_as_well() -> None:
    trajectories, _ = run(Reward.model_validate({"scale": 10.0, "bias": -0.5, "overlong": {"buffer": 4}}))
    rewards = [trajectory.reward for trajectory in trajectories]
    assert rewards[:6] == [5.0] * 6
    assert rewards[6:9] == [4.75, 4.5, 4.25]
    assert rewards[9:] == [-6.0] * 3  # no grade counts as raw 0, so breaking the grader never pays
    assert [t.unshaped_reward for t in trajectories] == [1.0] * 9 + [0.0] * 3
    assert [t.reward_parts for t in trajectories] == [{"correct": 1.0}] * 9 + [{}] * 3
    assert [t.reward_error for t in trajectories] == [""] * 9 + ["broken"] * 3


def test_truncated_episodes_are_masked_and_keep_their_reward_and_a_group_waits_for_its_grades() -> None:
    trajectories, episodes = run(Reward(mask_truncated=True))
    assert [bool(t.loss_mask.any()) for t in trajectories] == [True] * 10 + [False] * 2
    assert [t.reward for t in trajectories] == [1.0] * 9 + [0.0] * 3
    assert trajectories[-1].truncated
    assert trajectories[-1].num_sampled == BUDGET
    assert episodes.reward_wait_seconds == pytest.approx(3.0)  # from the end of its last episode
    assert episodes.num_graded_groups == 1
