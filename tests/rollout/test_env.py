"""An episode is truncated if the budget or the context ended it, and not if the policy or the env did."""

import pytest

from arl import clock
from arl.config.recipe import Rollout
from arl.engine.base import Engine
from arl.rollout.env import Env, Session
from arl.rollout.episodes import Episodes
from arl.types import FinishReason, GenerateRequest, Increment, Problem, Trajectory
from tests.fakes import NullCodec, NullRewards


class Speaker:
    """An engine that says `length` tokens in each turn and stops, or all that it may."""

    def __init__(self, length: int) -> None:
        self._length = length

    async def generate(self, request: GenerateRequest):  # type: ignore[no-untyped-def]
        """See Engine."""
        allowed = request.sampling.max_new_tokens
        count = min(self._length, allowed)
        reason: FinishReason = "stop" if self._length <= allowed else "length"
        yield Increment((1,) * count, (-1.0,) * count, (0,) * count, reason)


def episode(env: Env, length: int, budget: int = 10, context: int = 20) -> Trajectory:
    """Run one episode; its prompt is one token, and NullCodec makes a token of every character."""
    rollout = Rollout(group_size=1, max_new_tokens=budget)
    engine: Engine = Speaker(length)  # type: ignore[assignment]
    episodes = Episodes(engine, NullCodec(), NullRewards(), env, rollout, seed=0, max_length=context)

    async def main() -> Trajectory:
        problem = Problem("p")
        (trajectory,) = await episodes.run(problem, episodes.open("g0", problem))
        return trajectory

    return clock.run(main, virtual=True)


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
    assert episode(env, length).truncated is truncated, why
