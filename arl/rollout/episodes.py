"""Run the G episodes of one problem and score them.

Problem ─► open: prompt ids ─► G sessions ─► run: the env drives each ─► rewards of the whole group ─► G trajectories
"""

import asyncio
import hashlib
import math
from collections.abc import Sequence
from typing import Protocol

from arl.config.recipe import Rollout
from arl.data.text_codec import TextCodec
from arl.engine.base import Engine
from arl.errors import RewardError
from arl.rollout.env import Env, Session
from arl.types import Problem, SamplingParams, Trajectory, Turn


class Rewards(Protocol):
    async def score(self, problem: Problem, responses: Sequence[str], truncated: Sequence[bool]) -> list[float]:
        """One finite number per response.

        Raises:
            RewardError: the function raised, hung or returned something else.
        """


class Episodes:
    """Everything an episode needs, bound once."""

    def __init__(
        self,
        engine: Engine,
        codec: TextCodec,
        rewards: Rewards,
        env: Env,
        rollout: Rollout,
        seed: int,
        max_length: int,
    ) -> None:
        self._engine, self._codec, self._rewards, self._env = engine, codec, rewards, env
        self._rollout, self._seed, self._max_length = rollout, seed, max_length
        self.tokens_generated = 0  # by episodes that have ended
        self.num_diverged = 0  # episodes whose env did not repeat what a resumed run had recorded

    def open(self, name: str, problem: Problem, journals: Sequence[tuple[Turn, ...]] = ()) -> list[Session]:
        """The sessions of group `name`; what they sample depends on (seed, name) and the weights alone.

        Args:
            journals: of the same sessions in the run that is resumed, in their order.
        """
        prompt_ids = self._codec.encode_problem(problem)
        recorded = dict(enumerate(journals))
        return [
            self._session(f"{name}.{i}", name, prompt_ids, recorded.get(i, ())) for i in range(self._rollout.group_size)
        ]

    async def run(self, problem: Problem, sessions: Sequence[Session]) -> tuple[Trajectory, ...]:
        """The trajectories of `sessions`, in their order.

        Raises:
            EngineError, RewardError, Rejected, or whatever the env raised: one failed episode fails its group.
        """
        async with asyncio.TaskGroup() as tasks:
            episodes = [tasks.create_task(self._drive(problem, session)) for session in sessions]
        rewards = {i: own for i, episode in enumerate(episodes) if (own := episode.result()) is not None}
        unscored = [i for i in range(len(sessions)) if i not in rewards]
        if unscored:
            rewards |= zip(unscored, await self._score(problem, [sessions[i] for i in unscored]), strict=True)
        return tuple(session.trajectory(rewards[i]) for i, session in enumerate(sessions))

    def _session(
        self, episode_id: str, affinity: str, prompt_ids: tuple[int, ...], journal: tuple[Turn, ...]
    ) -> Session:
        digest = hashlib.blake2b(f"{self._seed} {episode_id}".encode(), digest_size=8).digest()
        sampling = SamplingParams(
            max_new_tokens=self._rollout.max_new_tokens,
            temperature=self._rollout.temperature,
            stop_token_ids=self._codec.stop_token_ids,
            seed=int.from_bytes(digest, "big") >> 1,  # fits a signed 64-bit integer
        )
        return Session(self._engine, self._codec, sampling, prompt_ids, self._max_length, episode_id, affinity, journal)

    async def _score(self, problem: Problem, sessions: list[Session]) -> list[float]:
        responses = [s.response for s in sessions]
        return await self._rewards.score(problem, responses, [not s.finished for s in sessions])

    async def _drive(self, problem: Problem, session: Session) -> float | None:
        try:
            own = await self._env(problem, session)
            if own is not None and not math.isfinite(own):
                raise RewardError(f"the env gave problem {problem.id} the reward {own}: return a finite number or None")
            return own
        finally:
            self.tokens_generated += session.num_sampled
            self.num_diverged += session.diverged
