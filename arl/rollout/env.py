"""Environments drive episodes; a Session is what they drive: one token record, extended turn by turn.

async def my_env(problem: Problem, session: Session) -> float | None:
    while not session.is_over:
        turn = await session.generate()
        session.extend(answer_to(turn))        # tool or environment text: in the context, never trained
    return None                                # None: the recipe's reward function scores the episode
"""

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import msgspec
import numpy as np

from arl.data.tokenizer import TextCodec
from arl.engine.base import Engine
from arl.errors import DataError
from arl.types import NOT_SAMPLED, Completion, GenerateRequest, Increment, Problem, SamplingParams, Trajectory

Env = Callable[[Problem, "Session"], Awaitable[float | None]]


class Session:
    """One episode in progress. Whatever the engine has said is in the record, even if the engine dies."""

    def __init__(
        self,
        engine: Engine,
        codec: TextCodec,
        sampling: SamplingParams,
        prompt_ids: tuple[int, ...],
        max_length: int,
        episode_id: str,
        affinity: str,
    ) -> None:
        self._engine, self._codec, self._sampling = engine, codec, sampling
        self._episode_id, self._affinity, self._turns = episode_id, affinity, 0
        self._token_ids, self._max_length = list(prompt_ids), max_length
        self._logprobs = [0.0] * len(prompt_ids)
        self._versions = [NOT_SAMPLED] * len(prompt_ids)
        self.prompt_length = len(prompt_ids)
        self.num_sampled = 0
        self.finished = False  # the policy ended its last turn by itself

    @property
    def budget(self) -> int:
        """Tokens the episode may still sample."""
        return min(self._sampling.max_new_tokens - self.num_sampled, self._max_length - len(self._token_ids))

    @property
    def is_over(self) -> bool:
        return self.budget <= 0

    @property
    def response(self) -> str:
        """Everything after the prompt, without special tokens."""
        return self._codec.decode(tuple(self._token_ids[self.prompt_length :]))

    def extend(self, text: str) -> None:
        """Append text the policy did not write.

        Raises:
            DataError: the episode outgrows the model's context or the trainer's capacity.
        """
        ids = self._codec.encode(text)
        total = len(self._token_ids) + len(ids)
        if total > self._max_length:
            raise DataError(f"the episode would have {total} tokens; model and train.capacity hold {self._max_length}")
        self._token_ids += ids
        self._logprobs += [0.0] * len(ids)
        self._versions += [NOT_SAMPLED] * len(ids)

    async def generate(self, limit: int | None = None, stop: bool = True) -> Completion:
        """Let the policy take one turn, up to a stop token (if `stop`), `limit` tokens, or the end of the budget."""
        assert not self.is_over, "the episode has no budget left: check session.is_over"
        request = GenerateRequest(
            request_id=f"{self._episode_id}.{self._turns}",
            input_ids=tuple(self._token_ids),
            sampling=self._turn_sampling(limit, stop),
            affinity=self._affinity,
        )
        self._turns += 1
        start = len(self._token_ids)
        async with aclosing(self._engine.generate(request)) as increments:  # type: ignore[type-var]
            async for increment in increments:
                self._record(increment)
        assert increment.finish_reason is not None
        self.finished = increment.finish_reason == "stop"
        return Completion(
            tuple(self._token_ids[start:]),
            tuple(self._logprobs[start:]),
            tuple(self._versions[start:]),
            increment.finish_reason,
        )

    def _turn_sampling(self, limit: int | None, stop: bool) -> SamplingParams:
        tokens = self.budget if limit is None else min(limit, self.budget)
        stops = self._sampling.stop_token_ids if stop else ()
        return msgspec.structs.replace(self._sampling, max_new_tokens=tokens, stop_token_ids=stops)

    def _record(self, increment: Increment) -> None:
        self._token_ids += increment.token_ids
        self._logprobs += increment.logprobs
        self._versions += increment.policy_versions
        self.num_sampled += len(increment.token_ids)

    def trajectory(self, reward: float) -> Trajectory:
        versions = np.array(self._versions, dtype=np.int32)
        return Trajectory(
            token_ids=np.array(self._token_ids, dtype=np.int32),
            behavior_logprobs=np.array(self._logprobs, dtype=np.float32),
            policy_versions=versions,
            loss_mask=versions != NOT_SAMPLED,
            prompt_length=self.prompt_length,
            reward=reward,
            truncated=not self.finished,
        )


async def single_turn(problem: Problem, session: Session) -> None:
    """Ask once."""
    del problem
    await session.generate()
