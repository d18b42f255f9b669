"""Hold the token records of an episode. Most episodes have one; a conversation whose history changes forks it.

branch 0   prompt ─ turn ─ tool output ─ turn
                    └─ branch 1   copied prompt and turn: context, trained in branch 0 alone ─ other text ─ turn
"""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from arl.types import NOT_SAMPLED, FinishReason, Grade, Increment, Trajectory


class Branch:
    """Hold one token record, which only grows.

    Args:
        number: 0, 1, 2, … within the episode.
        seed: of the tokens that are sampled here.
        token_ids: what it begins with. None of them is trained in this branch.
        prompt_length: of these, the tokens that count as its prompt.
    """

    def __init__(self, number: int, seed: int, token_ids: Sequence[int], prompt_length: int) -> None:
        # A fork samples other tokens than the branch that it left, also where both have the same context.
        digest = hashlib.blake2b(f"{seed} branch {number}".encode(), digest_size=8).digest()
        self.seed = int.from_bytes(digest, "big") >> 1 if number else seed
        self.number = number
        self.prompt_length = prompt_length
        # Arrays, because lists of Python's numbers take seven times the memory, and every open episode has them.
        self.token_ids = array("i", token_ids)
        self.logprobs = array("d", [0.0] * len(token_ids))
        self.versions = array("i", [NOT_SAMPLED] * len(token_ids))
        self.overflowed = False  # a text did not fit
        self.last_turn: TurnSpan | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def ends_with_stop(self) -> bool:
        """Return whether the policy stopped by itself, and no text came after that."""
        last = self.last_turn
        if self.overflowed or last is None:
            return False
        return last.finish_reason == "stop" and last.end == len(self)

    def begin_turn(self) -> "TurnSpan":
        """Begin a turn of the policy behind all tokens."""
        self.last_turn = TurnSpan(self, len(self), len(self))
        return self.last_turn

    def extend(self, token_ids: Sequence[int], max_length: int) -> None:
        """Append what the policy did not write. What does not fit is left out, and no turn can follow."""
        self.overflowed = len(self) + len(token_ids) > max_length
        if self.overflowed:
            return
        self.token_ids.extend(token_ids)
        self.logprobs.extend([0.0] * len(token_ids))
        self.versions.extend([NOT_SAMPLED] * len(token_ids))

    def context(self, end: int) -> bytes:
        """Return a digest of the tokens before `end`."""
        token_ids = np.array(self.token_ids[:end], np.int32)
        return hashlib.blake2b(token_ids.tobytes(), digest_size=8).digest()

    def trajectory(self, grade: Grade, truncated: bool) -> Trajectory:
        """Return the record as it is now, with its reward not shaped."""
        versions = np.array(self.versions, dtype=np.int32)
        return Trajectory(
            token_ids=np.array(self.token_ids, dtype=np.int32),
            behavior_logprobs=np.array(self.logprobs, dtype=np.float32),
            policy_versions=versions,
            loss_mask=versions != NOT_SAMPLED,
            prompt_length=self.prompt_length,
            reward=grade.reward,
            unshaped_reward=grade.reward,
            truncated=truncated,
            reward_parts=grade.parts,
            reward_error=grade.error,
        )


@dataclass
class TurnSpan:
    """Say where a turn of the policy lies in its branch."""

    branch: Branch
    start: int
    end: int
    finish_reason: FinishReason | None = None
    stop: tuple[str, ...] = ()  # strings that end it

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Return what the policy said so far."""
        return tuple(self.branch.token_ids[self.start : self.end])

    @property
    def said(self) -> Increment:
        """Return the same with logprobs and versions."""
        span = slice(self.start, self.end)
        return Increment(
            token_ids=self.token_ids,
            logprobs=tuple(self.branch.logprobs[span]),
            policy_versions=tuple(self.branch.versions[span]),
            finish_reason=self.finish_reason,
        )

    def record(self, increment: Increment) -> None:
        """Append what an engine has sampled."""
        self.branch.token_ids.extend(increment.token_ids)
        self.branch.logprobs.extend(increment.logprobs)
        self.branch.versions.extend(increment.policy_versions)
        self.end = len(self.branch)
        self.finish_reason = increment.finish_reason
