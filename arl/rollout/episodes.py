"""Run the G episodes of one problem and score each as soon as it ends.

Problem ─► open: prompt ids ─► G sessions ─► run: an env drives each ─► its grade ─► shaped ─► G trajectories
"""

import asyncio
import hashlib
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np

from arl.clock import now
from arl.config.recipe import Reward, Rollout
from arl.data.text_codec import TextCodec
from arl.engine.base import Engine
from arl.errors import RewardError
from arl.metrics.spans import span
from arl.reward.grading import NoRewardError, read_number
from arl.reward.scorer import UNSHAPED, is_masked, shaped
from arl.rollout.base import Drain
from arl.rollout.env import Env, Session
from arl.rollout.env_watch import EnvWatch
from arl.rollout.ledger import GateMeter, GroupMeter
from arl.rollout.tools import encode_prompt
from arl.types import Grade, Problem, Response, SamplingParams, Trajectory, Turn


class Rewards(Protocol):
    """Score episodes, one at a time."""

    async def score(self, problem: Problem, response: Response) -> Grade:
        """Return the grade of one response.

        Raises:
            RewardError: it has no grade, and its group is to be lost.
            RunError: it has no grade, and the run is to end.
        """


@dataclass(eq=False)
class Episodes:
    """Open and run the episodes of groups. Implements Groups, see arl.rollout.base.

    Args:
        seed: of the recipe; what an episode samples depends on it.
        max_length: tokens of one trajectory that model and trainer hold.
        watch: looks after the env.
        shaping: how trained rewards are shaped; the default leaves them as they are, as an evaluation does.
        top_p, top_k: see SamplingParams; other than the defaults for evaluations only.
        teacher: adds to a trajectory what a teacher says of its tokens (Trajectory.teacher).
        meter, gate_meter, drain: of the run; the episodes of several sources share them.
    """

    engine: Engine
    codec: TextCodec
    rewards: Rewards
    env: Env
    watch: EnvWatch
    rollout: Rollout
    seed: int
    max_length: int
    shaping: Reward = UNSHAPED
    top_p: float = 1.0
    top_k: int = -1
    teacher: Callable[[Trajectory], Awaitable[Trajectory]] | None = None
    meter: GroupMeter = field(default_factory=GroupMeter)
    gate_meter: GateMeter = field(default_factory=GateMeter)
    drain: Drain = field(default_factory=Drain)

    def open(self, name: str, problem: Problem, journals: Sequence[tuple[Turn, ...]] = ()) -> list[Session]:
        """Open the sessions of group `name`. What they sample depends only on (seed, name) and the weights.

        Args:
            journals: of the same sessions in the run that is resumed, in their order.
        """
        prompt_ids = encode_prompt(self.codec, problem, self.rollout.tools)
        sessions = []
        for i in range(self.rollout.group_size):
            episode_id = f"{name}.{i}"
            digest = hashlib.blake2b(f"{self.seed} {episode_id}".encode(), digest_size=8).digest()
            sampling = SamplingParams(
                max_new_tokens=self.rollout.max_new_tokens,
                temperature=self.rollout.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                stop_token_ids=(*self.codec.stop_token_ids, *self.rollout.stop_token_ids),
                seed=int.from_bytes(digest, "big") >> 1,  # fits a signed 64-bit integer
            )
            session = Session(
                self.engine,
                self.codec,
                sampling=sampling,
                prompt_ids=prompt_ids,
                max_length=self.max_length,
                episode_id=episode_id,
                affinity=name,
                journal=journals[i] if journals else (),
                stop=self.rollout.stop,
                meter=self.gate_meter,
                rollout=self.rollout,
            )
            sessions.append(session)
        return sessions

    async def run(self, problem: Problem, sessions: Sequence[Session]) -> tuple[Trajectory, ...]:
        """Run all episodes at once, score those that their env did not score, and return their trajectories in order:
        one for each branch of each episode.

        An episode is scored while others of its group still generate, so that training waits for the last one's grade
        alone.

        Raises (in an ExceptionGroup):
            EngineError, RewardError, Rejected, or whatever the env raised: one failed episode fails its group.
            RunError: see Rewards.
        """
        async with asyncio.TaskGroup() as tasks:
            episodes = [tasks.create_task(self._run_one(problem, session)) for session in sessions]
        ended_at, branches = zip(*(episode.result() for episode in episodes), strict=True)
        self.meter.reward_wait_seconds += now() - max(ended_at)
        self.meter.num_graded += 1
        return tuple(itertools.chain.from_iterable(branches))

    async def _run_one(self, problem: Problem, session: Session) -> tuple[float, list[Trajectory]]:
        """Run and grade one episode. Return when it had ended, in clock seconds, and the trajectories of its branches.

        What its env gave is its grade; where that gave none, the reward function grades it.
        """
        grade = await self._drive(problem, session)
        ended_at = now()
        response = session.seen_by_reward()
        if grade is None:
            with span("rewards", session.episode_id):
                grade = await self.rewards.score(problem, response)
        branches = [self._as_trained(branch, response, grade) for branch in session.trajectories(grade)]
        if self.teacher is not None:
            with span("teachers", session.episode_id):
                branches = [await self.teacher(branch) for branch in branches]
        return ended_at, branches

    def _as_trained(self, trajectory: Trajectory, response: Response, grade: Grade) -> Trajectory:
        """Return a trajectory of a graded episode, as training is to see it."""
        mask = trajectory.loss_mask
        return msgspec.structs.replace(
            trajectory,
            reward=shaped(grade.reward, response, self.shaping),
            loss_mask=np.zeros_like(mask) if is_masked(response, self.shaping) else mask,
        )

    async def _drive(self, problem: Problem, session: Session) -> Grade | None:
        """Run one episode and return the grade that its env gave, if any."""
        try:
            async with self.drain.episode():
                own = await self.watch.drive(self.env, problem, session)
            session.end()
            if own is None:
                return None
            grade = own if isinstance(own, Grade) else Grade(own)
            return msgspec.structs.replace(grade, reward=read_number(grade.reward, "the reward that the env gave"))
        except NoRewardError as error:
            raise RewardError(f"problem {problem.id}: {error}, or None") from error
        finally:
            session.has_ended = True
            self.meter.num_diverged += session.diverged


class SourceGroups:
    """Run each group by the prompts, env and rewards of its problem's source. Implements Groups."""

    def __init__(self) -> None:
        self.sources: dict[str, Episodes] = {}  # with these meters and this drain
        self.meter = GroupMeter()
        self.gate_meter = GateMeter()
        self.drain = Drain()

    def open(self, name: str, problem: Problem, journals: Sequence[tuple[Turn, ...]] = ()) -> list[Session]:
        """See Groups."""
        return self.sources[problem.source].open(name, problem, journals)

    async def run(self, problem: Problem, sessions: Sequence[Session]) -> tuple[Trajectory, ...]:
        """See Groups."""
        return await self.sources[problem.source].run(problem, sessions)
