"""Drive episodes by environments. A Session is what an env drives: one token record, extended turn by turn.

    async def my_env(problem: Problem, session: Session) -> float | None:
        while not session.is_over:
            turn = await session.generate()
            session.extend(answer_to(turn))    # tool or environment text: in the context, never trained
        return None                            # None: the recipe's reward function scores the episode

An env ends the episode by returning. The episode is `truncated` if the token budget or the context ended it instead:
the policy was cut off in its last turn, or text for the policy was left that it had no budget to answer.

An env may raise arl.errors.Rejected: its group is then rejected, as a filter rejects one. A resumed run drives an env
again through the turns that were recorded. From the first turn that has another context on, it generates anew.

A turn ends with a stop token or with the token that completes a stop string. Both are recorded and trained, and stay in
the context of later turns. The response that the reward sees leaves out what ended the last turn.
"""

import hashlib
import math
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec
import numpy as np

from arl.data.text_codec import TextCodec
from arl.engine.base import Engine
from arl.engine.continuation import Continuation
from arl.rollout.ledger import GateMeter
from arl.rollout.stop_strings import StopStrings
from arl.types import (
    NOT_SAMPLED,
    Completion,
    FinishReason,
    GenerateRequest,
    Grade,
    Increment,
    Problem,
    Response,
    SamplingParams,
    Trajectory,
    Turn,
)

Env = Callable[[Problem, "Session"], Awaitable[float | None]]
UNGRADED = Grade(math.nan)  # of an episode that ended before it was scored


@dataclass
class _Span:
    """Say where a turn lies in the record."""

    start: int
    end: int
    finish_reason: FinishReason | None = None


class Session:
    """Hold one episode in progress. Everything that the engine generates is recorded at once, even if the engine dies.

    With a `journal`, the turns in it are not generated again: the env receives them as they were, and a turn that was
    not over continues where it stopped.

    Args:
        sampling: `max_new_tokens` is the budget of the whole episode.
        prompt_ids: the common prompt of the group.
        max_length: tokens of the whole episode that model and trainer hold.
        affinity: requests of one group go to one replica.
        journal: the turns that a resumed run had recorded.
        stop: strings that end a turn.
        meter: counts open requests.
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
        stop: Sequence[str] = (),
        meter: GateMeter | None = None,
    ) -> None:
        self._engine = engine
        self._codec = codec
        self._stop = StopStrings(codec, stop) if stop else None
        self._sampling = sampling
        self._max_length = max_length
        self.episode_id = episode_id
        self._affinity = affinity
        self._meter = meter or GateMeter()
        self._journal = journal
        self._turns: list[_Span] = []
        # Arrays, because lists of Python's numbers take seven times the memory, and every open episode has them.
        self._token_ids = array("i", prompt_ids)
        self._logprobs = array("d", [0.0] * len(prompt_ids))
        self._versions = array("i", [NOT_SAMPLED] * len(prompt_ids))
        self._overflowed = False  # a text did not fit
        self._returned = False  # the env has returned
        self.on_turn: Callable[[bool], None] = lambda is_open: None  # is told when a turn begins, and when it ends
        self.prompt_length = len(prompt_ids)
        self.num_sampled = 0
        self.has_ended = False  # its env has returned or raised
        self.diverged = False  # from its journal, whose rest was forgotten

    @property
    def budget(self) -> int:
        """Return how many tokens the episode may still sample."""
        if self._overflowed:
            return 0
        unsampled = self._sampling.max_new_tokens - self.num_sampled
        room = self._max_length - len(self._token_ids)
        return max(min(unsampled, room), 0)

    @property
    def is_over(self) -> bool:
        """Return whether the policy can take no further turn: its budget is spent, or the context is full."""
        return self.budget == 0

    @property
    def truncated(self) -> bool:
        """Return whether the budget, the context or the run ended the episode, and not the policy or the env.

        An env that returns while budget is left has ended the episode, whatever ended the last turn. Without budget,
        only a policy that stopped by itself, with nothing left to answer, has ended it.
        """
        if not self._returned:
            return True
        return self.is_over and not self._ends_with_stop()

    @property
    def response(self) -> str:
        """Return the text after the prompt, without the tokens that end or frame turns."""
        return self._codec.decode(tuple(self._token_ids[self.prompt_length :]))

    def extend(self, text: str) -> None:
        """Append text that the policy did not write. Text that does not fit is left out, and the episode is over."""
        ids = self._codec.encode(text)
        if self._overflowed or len(self._token_ids) + len(ids) > self._max_length:
            self._overflowed = True
            return
        self._token_ids.extend(ids)
        self._logprobs.extend([0.0] * len(ids))
        self._versions.extend([NOT_SAMPLED] * len(ids))

    async def generate(self, limit: int | None = None, stop: bool = True) -> Completion:
        """Let the policy take one turn, up to a stop token or string, `limit` tokens or the end of the budget.

        Args:
            limit: tokens of this turn; None: the whole budget.
            stop: whether a stop token or a stop string ends the turn.

        Raises:
            ValueError: the episode is over.
        """
        if self.is_over:
            raise ValueError("session.generate() after the end of the episode: check session.is_over before each turn")
        start = len(self._token_ids)
        sampling = msgspec.structs.replace(
            self._sampling,
            max_new_tokens=self.budget if limit is None else min(limit, self.budget),
            stop_token_ids=self._sampling.stop_token_ids if stop else (),
        )
        turn = _Span(start, start)
        self._turns.append(turn)
        self._recall(turn)
        if turn.finish_reason is None:
            self.on_turn(True)
            try:
                await self._ask(turn, sampling, self._stop if stop else None)
            finally:
                self.on_turn(False)
        assert turn.finish_reason is not None
        return Completion(
            token_ids=tuple(self._token_ids[start:]),
            logprobs=tuple(self._logprobs[start:]),
            policy_versions=tuple(self._versions[start:]),
            finish_reason=turn.finish_reason,
        )

    def end(self) -> None:
        """Note that the env has returned."""
        self._returned = True

    def journal(self) -> tuple[Turn, ...]:
        """Return what the engine has generated so far: with it, a new session takes the env back to this point."""
        turns = [Turn(self._context(turn.start), self._said(turn)) for turn in self._turns]
        not_reached = self._journal[len(turns) :]  # by an env that is driven again through its old turns
        return (*turns, *not_reached)

    def seen_by_reward(self) -> Response:
        """Return what a reward function sees of the episode."""
        return Response(
            text=self._text_before_stop(),
            truncated=self.truncated,
            num_tokens=self.num_sampled,
            budget=self._sampling.max_new_tokens,
        )

    def trajectory(self, grade: Grade) -> Trajectory:
        """Return the token record as it is now, with its reward not shaped; `UNGRADED` if it was not scored."""
        versions = np.array(self._versions, dtype=np.int32)
        return Trajectory(
            token_ids=np.array(self._token_ids, dtype=np.int32),
            behavior_logprobs=np.array(self._logprobs, dtype=np.float32),
            policy_versions=versions,
            loss_mask=versions != NOT_SAMPLED,
            prompt_length=self.prompt_length,
            reward=grade.reward,
            unshaped_reward=grade.reward,
            truncated=self.truncated,
            reward_parts=grade.parts,
            reward_error=grade.error,
        )

    def _ends_with_stop(self) -> bool:
        """Return whether the policy stopped by itself, and no text came after that."""
        if self._overflowed or not self._turns:
            return False
        last = self._turns[-1]
        return last.finish_reason == "stop" and last.end == len(self._token_ids)

    def _text_before_stop(self) -> str:
        """Return the response without what ended its last turn: a stop token, or a stop string and what comes after it.

        What ended earlier turns is in the text, because the policy has read it.
        """
        if not self._ends_with_stop():
            return self.response
        if self._stop is not None:
            turn = self._turns[-1]
            said = self._codec.decode(tuple(self._token_ids[turn.start : turn.end]))
            if left_out := len(said) - len(self._stop.text_before(said)):
                return self.response[:-left_out]
        if self._token_ids[-1] in self._sampling.stop_token_ids:
            return self._codec.decode(tuple(self._token_ids[self.prompt_length : -1]))
        return self.response

    def _context(self, end: int) -> bytes:
        """Return a digest of the tokens before `end`."""
        token_ids = np.array(self._token_ids[:end], np.int32)
        return hashlib.blake2b(token_ids.tobytes(), digest_size=8).digest()

    def _said(self, turn: _Span) -> Increment:
        span = slice(turn.start, turn.end)
        return Increment(
            token_ids=tuple(self._token_ids[span]),
            logprobs=tuple(self._logprobs[span]),
            policy_versions=tuple(self._versions[span]),
            finish_reason=turn.finish_reason,
        )

    def _recall(self, turn: _Span) -> None:
        """Take this turn from the journal, as far as it goes."""
        number = len(self._turns) - 1
        if number >= len(self._journal):
            return
        if self._journal[number].context == self._context(turn.start):
            self._record(turn, self._journal[number].said)
        else:
            self.diverged = True
            self._journal = self._journal[:number]

    async def _ask(self, turn: _Span, sampling: SamplingParams, stop: StopStrings | None) -> None:
        """Have the engine generate the rest of this turn, up to the token that completes a stop string."""
        whole = GenerateRequest(
            request_id=f"{self.episode_id}.{len(self._turns) - 1}",
            input_ids=tuple(self._token_ids[: turn.start]),
            sampling=sampling,
            affinity=self._affinity,
        )
        left = Continuation(whole, self._token_ids[turn.start : turn.end])
        turn.finish_reason = left.finish(None)
        if turn.finish_reason is not None:
            return
        self._meter.opened(1)
        try:
            async with aclosing(self._engine.generate(left.rest())) as increments:  # type: ignore[type-var]
                async for increment in increments:
                    kept = increment
                    if stop is not None:
                        kept = stop.cut(self._token_ids[turn.start : turn.end], increment)
                    self._record(turn, kept)
                    if kept is not increment:
                        break  # which aborts the request
        finally:
            self._meter.opened(-1)

    def _record(self, turn: _Span, increment: Increment) -> None:
        self._token_ids.extend(increment.token_ids)
        self._logprobs.extend(increment.logprobs)
        self._versions.extend(increment.policy_versions)
        self.num_sampled += len(increment.token_ids)
        turn.end = len(self._token_ids)
        turn.finish_reason = increment.finish_reason


async def single_turn(problem: Problem, session: Session) -> None:
    """Let the policy answer once."""
    del problem
    await session.generate()
