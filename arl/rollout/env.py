"""Drive episodes by environments. A Session is what an env drives: one token record, extended turn by turn.

    async def my_env(problem: Problem, session: Session) -> float | Grade | None:
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

A conversation (arl.rollout.conversation) forks the record where history changes. All branches share the token budget.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing

import msgspec

from arl.config.recipe import Rollout
from arl.data.text_codec import TextCodec
from arl.engine.base import Engine
from arl.engine.continuation import Continuation
from arl.rollout.ledger import GateMeter
from arl.rollout.record import Branch, TurnSpan
from arl.rollout.stop_strings import StopStrings
from arl.types import (
    Completion,
    GenerateRequest,
    Grade,
    Increment,
    Problem,
    Response,
    SamplingParams,
    Trajectory,
    Turn,
)

Env = Callable[[Problem, "Session"], Awaitable[float | Grade | None]]
UNGRADED = Grade(math.nan)  # of an episode that ended before it was scored
DEFAULTS = Rollout()


class Session:
    """Hold one episode in progress. Everything that the engine generates is recorded at once, even if the engine dies.

    With a `journal`, the turns in it are not generated again: the env receives them as they were, and a turn that was
    not over continues where it stopped.

    Args:
        sampling: `max_new_tokens` is the budget of the whole episode.
        prompt_ids: the common prompt of the group.
        max_length: tokens of each branch that model and trainer hold.
        affinity: requests of one group go to one replica.
        journal: the turns that a resumed run had recorded.
        stop: strings that end a turn.
        meter: counts open requests.
        rollout: the recipe's section, for envs that have settings in it.
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
        rollout: Rollout = DEFAULTS,
    ) -> None:
        self._engine = engine
        self.codec = codec
        self.rollout = rollout
        self._stop = tuple(stop)
        self.sampling = sampling
        self._max_length = max_length
        self.episode_id = episode_id
        self._affinity = affinity
        self._meter = meter or GateMeter()
        self._journal = journal
        self._turns: list[TurnSpan] = []  # of all branches, in the order in which they began
        self.branches = [Branch(0, sampling.seed, prompt_ids, len(prompt_ids))]
        self._branch = self.branches[0]  # which was extended or spoken in last
        self._returned = False  # the env has returned
        self.on_turn: Callable[[bool], None] = lambda is_open: None  # is told when a turn begins, and when it ends
        self.measures: dict[str, float] = {}  # by which the env describes the episode, for metrics
        self.num_sampled = 0
        self.has_ended = False  # its env has returned or raised
        self.diverged = False  # from its journal, whose rest was forgotten

    @property
    def budget(self) -> int:
        """Return how many tokens the episode may still sample in the branch that was extended or spoken in last."""
        if self._branch.overflowed:
            return 0
        room = self._max_length - len(self._branch)
        return max(min(self._num_unsampled, room), 0)

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
        return self.is_over and not self._branch.ends_with_stop

    @property
    def response(self) -> str:
        """Return the text after the prompt, without the tokens that end or frame turns."""
        return self.codec.decode(tuple(self._branch.token_ids[self._branch.prompt_length :]))

    def fork(self, branch: Branch, keep: int, token_ids: Sequence[int]) -> Branch:
        """Begin a branch with the first `keep` tokens of another one and further ones, all as context."""
        forked = Branch(len(self.branches), self.sampling.seed, branch.token_ids[:keep], branch.prompt_length)
        self.branches.append(forked)
        self.extend_tokens(forked, token_ids)
        if keep < branch.prompt_length:
            forked.prompt_length = len(forked)
        return forked

    def extend(self, text: str) -> None:
        """Append text that the policy did not write. Text that does not fit is left out, and the episode is over."""
        if not self._branch.overflowed:
            self.extend_tokens(self._branch, self.codec.encode(text))

    def extend_tokens(self, branch: Branch, token_ids: Sequence[int]) -> None:
        """Append tokens that the policy did not write; the policy goes on in this branch. See `extend`."""
        branch.extend(token_ids, self._max_length)
        self._branch = branch

    async def generate(
        self, limit: int | None = None, stop: bool = True, stop_strings: Sequence[str] = ()
    ) -> Completion:
        """Let the policy take one turn, up to a stop token or string, `limit` tokens or the end of the budget.

        Args:
            limit: tokens of this turn; None: the whole budget.
            stop: whether a stop token or a stop string ends the turn.
            stop_strings: further ones, of this turn alone.

        Raises:
            ValueError: the episode is over.
        """
        if self.is_over:
            raise ValueError("session.generate() after the end of the episode: check session.is_over before each turn")
        branch = self._branch
        sampling = msgspec.structs.replace(
            self.sampling,
            max_new_tokens=self.budget if limit is None else min(limit, self.budget),
            stop_token_ids=self.sampling.stop_token_ids if stop else (),
            seed=branch.seed,
        )
        turn = branch.begin_turn()
        turn.stop = (*self._stop, *stop_strings) if stop else ()
        number = len(self._turns)
        self._turns.append(turn)
        self._recall(turn, number)
        if turn.finish_reason is None:
            self.on_turn(True)
            try:
                await self._ask(turn, number, sampling, StopStrings(self.codec, turn.stop) if turn.stop else None)
            finally:
                self.on_turn(False)
        said = turn.said
        assert said.finish_reason is not None
        return Completion(said.token_ids, said.logprobs, said.policy_versions, said.finish_reason)

    def endpoint(self) -> AbstractAsyncContextManager[str]:
        """Serve the episode by OpenAI's API while the context is open: `async with session.endpoint() as base_url`."""
        from arl.endpoint.episode_endpoint import open_endpoint  # a web server, which few envs need

        return open_endpoint(self)

    def end(self) -> None:
        """Note that the env has returned."""
        self._returned = True

    def journal(self) -> tuple[Turn, ...]:
        """Return what the engine has generated so far: with it, a new session takes the env back to this point."""
        turns = [Turn(turn.branch.context(turn.start), turn.said) for turn in self._turns]
        not_reached = self._journal[len(turns) :]  # by an env that is driven again through its old turns
        return (*turns, *not_reached)

    def seen_by_reward(self) -> Response:
        """Return what a reward function sees of the episode: the text of the branch that was spoken in last."""
        return Response(
            text=self._text_before_stop(),
            truncated=self.truncated,
            num_tokens=self.num_sampled,
            budget=self.sampling.max_new_tokens,
        )

    def trajectories(self, grade: Grade) -> tuple[Trajectory, ...]:
        """Return the token records as they are now, with their reward not shaped; `UNGRADED` if it was not scored.

        A branch in which the policy has said nothing is left out, if there is another.
        """
        records = [branch.trajectory(grade, self.truncated) for branch in self.branches]
        spoken = [record for record in records if record.loss_mask.any()] or records[:1]
        first = msgspec.structs.replace(spoken[0], measures=self.measures)
        forked = [msgspec.structs.replace(record, branch=i) for i, record in enumerate(spoken[1:], start=1)]
        return (first, *forked)

    @property
    def _num_unsampled(self) -> int:
        return self.sampling.max_new_tokens - self.num_sampled

    def tokens_of(self, turn: TurnSpan) -> tuple[int, ...]:
        """Return what the policy said in a turn, without a stop token that ended it."""
        ids = turn.token_ids
        is_stopped = turn.finish_reason == "stop" and ids[-1] in self.sampling.stop_token_ids
        return ids[:-1] if is_stopped else ids

    def text_of(self, turn: TurnSpan) -> str:
        """Return the same as text, without a stop string that ended it and what comes after that."""
        text = self.codec.decode(self.tokens_of(turn))
        return StopStrings(self.codec, turn.stop).text_before(text) if turn.stop else text

    def _text_before_stop(self) -> str:
        """Return the response without what ended its last turn.

        What ended earlier turns is in the text, because the policy has read it.
        """
        turn = self._branch.last_turn
        if turn is None or not self._branch.ends_with_stop:
            return self.response
        left_out = len(self.codec.decode(turn.token_ids)) - len(self.text_of(turn))
        return self.response[: len(self.response) - left_out]

    def _recall(self, turn: TurnSpan, number: int) -> None:
        """Take this turn from the journal, as far as it goes."""
        if number >= len(self._journal):
            return
        if self._journal[number].context == turn.branch.context(turn.start):
            self._record(turn, self._journal[number].said)
        else:
            self.diverged = True
            self._journal = self._journal[:number]

    async def _ask(self, turn: TurnSpan, number: int, sampling: SamplingParams, stop: StopStrings | None) -> None:
        """Have the engine generate the rest of this turn, up to the token that completes a stop string."""
        whole = GenerateRequest(
            request_id=f"{self.episode_id}.{number}",
            input_ids=tuple(turn.branch.token_ids[: turn.start]),
            sampling=sampling,
            affinity=self._affinity,
        )
        left = Continuation(whole, turn.token_ids)
        turn.finish_reason = left.finish(None)
        if turn.finish_reason is not None:
            return
        self._meter.opened(1)
        try:
            async with aclosing(self._engine.generate(left.rest())) as increments:  # type: ignore[type-var]
                async for increment in increments:
                    kept = increment
                    if stop is not None:
                        kept = stop.cut(turn.token_ids, increment)
                    kept = self._within_budget(kept)
                    self._record(turn, kept)
                    if kept is not increment:
                        break  # which aborts the request
        finally:
            self._meter.opened(-1)

    def _within_budget(self, said: Increment) -> Increment:
        """Cut what turns that are open at the same time say beyond their common budget."""
        left = self._num_unsampled
        if len(said.token_ids) <= left:
            return said
        return Increment(said.token_ids[:left], said.logprobs[:left], said.policy_versions[:left], "length")

    def _record(self, turn: TurnSpan, increment: Increment) -> None:
        turn.record(increment)
        self.num_sampled += len(increment.token_ids)


async def single_turn(problem: Problem, session: Session) -> None:
    """Let the policy answer once."""
    del problem
    await session.generate()
