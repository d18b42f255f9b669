"""Environments drive episodes; a Session is what they drive: one token record, extended turn by turn.

async def my_env(problem: Problem, session: Session) -> float | None:
    while not session.is_over:
        turn = await session.generate()
        session.extend(answer_to(turn))        # tool or environment text: in the context, never trained
    return None                                # None: the recipe's reward function scores the episode

An env may raise arl.errors.Rejected: its group is then rejected, as a filter rejects one. A resumed run drives an env
again through the turns that were recorded; from the first turn that has another context on, it generates anew.
"""

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
import numpy as np

from arl.data.text_codec import TextCodec
from arl.engine.base import Engine
from arl.engine.continuation import Continuation
from arl.errors import DataError
from arl.types import (
    NOT_SAMPLED,
    Completion,
    FinishReason,
    GenerateRequest,
    Increment,
    Problem,
    SamplingParams,
    Trajectory,
    Turn,
)

Env = Callable[[Problem, "Session"], Awaitable[float | None]]


@dataclass
class _Span:
    """Where a turn lies in the record."""

    start: int
    end: int
    finish_reason: FinishReason | None


class Session:
    """One episode in progress. Whatever the engine has said is in the record, even if the engine dies.

    With a `journal`, the turns in it are not generated again: the env hears them as they were, and a turn that was
    not over goes on where it stopped.
    """

    def __init__(
        self,
        engine: Engine,
        codec: TextCodec,
        sampling: SamplingParams,
        prompt_ids: tuple[int, ...],
        max_length: int,
        episode_id: str,
        affinity: str,
        journal: tuple[Turn, ...] = (),
    ) -> None:
        self._engine, self._codec, self._sampling = engine, codec, sampling
        self._episode_id, self._affinity, self._journal = episode_id, affinity, journal
        self._turns: list[_Span] = []
        self._token_ids, self._max_length = list(prompt_ids), max_length
        self._logprobs = [0.0] * len(prompt_ids)
        self._versions = [NOT_SAMPLED] * len(prompt_ids)
        self.prompt_length = len(prompt_ids)
        self.num_sampled = 0
        self.finished = False  # the policy ended its last turn by itself
        self.diverged = False  # from its journal, whose rest was forgotten

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
        sampling, start = self._turn_sampling(limit, stop), len(self._token_ids)
        turn = _Span(start, start, None)
        self._turns.append(turn)
        self._recall(turn)
        if turn.finish_reason is None:
            await self._ask(turn, sampling)
        assert turn.finish_reason is not None
        self.finished = turn.finish_reason == "stop"
        return Completion(
            tuple(self._token_ids[start:]),
            tuple(self._logprobs[start:]),
            tuple(self._versions[start:]),
            turn.finish_reason,
        )

    def journal(self) -> tuple[Turn, ...]:
        """What the engine has said so far: with it, a new session takes the env back to this point."""
        turns = [Turn(self._context(t.start), self._said(t)) for t in self._turns]
        return (*turns, *self._journal[len(turns) :])  # the env may not have come back to where it was

    def _context(self, end: int) -> bytes:
        return hashlib.blake2b(np.array(self._token_ids[:end], np.int32).tobytes(), digest_size=8).digest()

    def _said(self, turn: _Span) -> Increment:
        span = slice(turn.start, turn.end)
        ids, logprobs, versions = self._token_ids[span], self._logprobs[span], self._versions[span]
        return Increment(tuple(ids), tuple(logprobs), tuple(versions), turn.finish_reason)

    def _turn_sampling(self, limit: int | None, stop: bool) -> SamplingParams:
        tokens = self.budget if limit is None else min(limit, self.budget)
        stops = self._sampling.stop_token_ids if stop else ()
        return msgspec.structs.replace(self._sampling, max_new_tokens=tokens, stop_token_ids=stops)

    def _recall(self, turn: _Span) -> None:
        """Take this turn from the journal, as far as it goes."""
        number = len(self._turns) - 1
        if number >= len(self._journal):
            return
        if self._journal[number].context == self._context(turn.start):
            self._record(turn, self._journal[number].said)
        else:
            self.diverged, self._journal = True, self._journal[:number]

    async def _ask(self, turn: _Span, sampling: SamplingParams) -> None:
        whole = GenerateRequest(
            request_id=f"{self._episode_id}.{len(self._turns) - 1}",
            input_ids=tuple(self._token_ids[: turn.start]),
            sampling=sampling,
            affinity=self._affinity,
        )
        left = Continuation(whole, self._token_ids[turn.start : turn.end])
        turn.finish_reason = left.finish(None)
        if turn.finish_reason is not None:
            return
        async with aclosing(self._engine.generate(left.rest())) as increments:  # type: ignore[type-var]
            async for increment in increments:
                self._record(turn, increment)

    def _record(self, turn: _Span, increment: Increment) -> None:
        self._token_ids += increment.token_ids
        self._logprobs += increment.logprobs
        self._versions += increment.policy_versions
        self.num_sampled += len(increment.token_ids)
        turn.end, turn.finish_reason = len(self._token_ids), increment.finish_reason

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
