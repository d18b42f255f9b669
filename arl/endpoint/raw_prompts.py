"""Continue the record of an episode by prompts without a chat template, for requests to /completions.

prompt "1+1=2, and 2+2="                  branch 0 holds "1+1=" and, sampled, "2"
    ─► begins with the text of branch 0 ─► its tokens, as they were sampled, and ", and 2+2=" tokenized alone
    ─► the branch with the longest common prefix: extended, or forked where it says something else
"""

from collections.abc import Sequence
from typing import Protocol, cast

from arl.data.text_codec import TextCodec
from arl.endpoint.openai_requests import RefusedRequest
from arl.rollout.env import Session
from arl.rollout.record import Branch


class PlainCodec(TextCodec, Protocol):
    """Encode texts that begin a context."""

    vocab_size: int

    def encode_plain(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text with what the tokenizer puts before one."""


def tokens_of(session: Session, prompt: str | Sequence[int]) -> Sequence[int]:
    """Return the tokens of a prompt. What a text repeats of a branch has the tokens of the branch.

    Of an answer, a client repeats the text alone, without the token that ended it.

    Raises:
        RefusedRequest: there is no such token.
    """
    codec = cast(PlainCodec, session.codec)
    if not isinstance(prompt, str):
        if not 0 <= min(prompt) <= max(prompt) < codec.vocab_size:
            raise RefusedRequest(f"prompt: token ids are from 0 to {codec.vocab_size - 1}")
        return prompt
    opening = codec.encode_plain("")
    (unseen,) = codec.decode_all([opening], special_tokens=True)
    known: Sequence[int] = ()
    rest = prompt
    for branch in session.branches:
        ends = [len(branch), len(branch) - 1 if branch.ends_with_stop else len(branch)]
        for end in ends:
            token_ids = branch.token_ids[:end]
            (text,) = codec.decode_all([token_ids], special_tokens=True)
            text = text.removeprefix(unseen)
            if end > len(known) and prompt.startswith(text):
                known, rest = token_ids, prompt[len(text) :]
    return [*known, *codec.encode(rest)] if known else codec.encode_plain(prompt)


def go_on(session: Session, prompt: Sequence[int]) -> Branch:
    """Return a branch that holds exactly these tokens. The policy goes on in it."""
    closest = max(session.branches, key=lambda branch: _common(branch.token_ids, prompt))
    keep = _common(closest.token_ids, prompt)
    turn = closest.last_turn
    is_speaking = turn is not None and turn.finish_reason is None
    if keep < len(closest) or is_speaking:
        return session.fork(closest, keep, prompt[keep:])
    session.extend_tokens(closest, prompt[keep:])
    return closest


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the longest common prefix."""
    pairs = zip(first, second, strict=False)
    shorter = min(len(first), len(second))
    return next((i for i, (one, other) in enumerate(pairs) if one != other), shorter)
