"""Find where a stop string ends a turn: the first token after which the turn's text contains one.

    turn    3 4 2 \\n \\n Q uestion : …         rollout.stop: ["\\n\\n"]
                    ▲ the string is complete: the record ends with this token, which is trained
    text    342                               what the reward sees ends before the string

The search runs on the session's side, so that it is the same for every engine. It looks at the text that the tokens
decode to, because a string may lie across tokens, and a token may hold more than the string.
"""

from collections.abc import Sequence

from arl.data.text_codec import TextCodec
from arl.types import Increment

PARTIAL = "\N{REPLACEMENT CHARACTER}"  # what a decoder writes for the bytes of an incomplete character
# Characters of a window beyond the longest string: as many as one incomplete character at each end may decode to.
MARGIN = 8


class StopStrings:
    """Search the text of a turn for stop strings, as its tokens arrive.

    Only a window of the newest tokens is decoded. It begins early enough for a string that the new tokens complete.
    Nothing is remembered between calls, so that a resumed turn continues as the interrupted one would have.

    Args:
        codec: decodes the tokens.
        strings: what ends a turn; at least one, none of them empty or with U+FFFD.
    """

    def __init__(self, codec: TextCodec, strings: Sequence[str]) -> None:
        self._codec = codec
        self._strings = tuple(strings)
        self._longest = max(map(len, strings))

    def cut(self, said: Sequence[int], new: Increment) -> Increment:
        """Return `new` itself, or a shorter one that ends, with reason "stop", where it completes a stop string.

        Args:
            said: tokens of the turn before it, which contain no stop string.
            new: the increment.
        """
        end = self.find([*said, *new.token_ids], len(said))
        if end is None:
            return new
        kept = end - len(said)
        return Increment(
            token_ids=new.token_ids[:kept],
            logprobs=new.logprobs[:kept],
            policy_versions=new.policy_versions[:kept],
            finish_reason="stop",
        )

    def find(self, token_ids: Sequence[int], searched: int) -> int | None:
        """Return the least number of tokens whose text contains a stop string; None if the text of all has none.

        Args:
            token_ids: of the turn so far.
            searched: so many of them were searched before, and contain none.
        """
        start = self._window(token_ids, searched)
        text = self._decode(token_ids[start:])
        # A character that is incomplete here may hide a string that was complete a token earlier.
        if not self._contains(text) and PARTIAL not in text:
            return None
        for end in range(searched + 1, len(token_ids) + 1):
            if self._contains(self._decode(token_ids[start:end])):
                return end
        return None

    def text_before(self, text: str) -> str:
        """Return the part of a turn's text that comes before its first stop string; all of it, where there is none."""
        places = [text.find(string) for string in self._strings]
        first = min((place for place in places if place >= 0), default=len(text))
        return text[:first]

    def _window(self, token_ids: Sequence[int], searched: int) -> int:
        """Return the first token that is decoded to find a string which ends after `searched` tokens.

        The window is doubled while its text is too short, because special tokens have none, and while it begins or
        ends within a character, because some decoders then give up a whole row of bytes.
        """
        enough = self._longest + MARGIN
        count = enough
        while count < searched:
            text = self._decode(token_ids[searched - count : searched])
            if len(text) >= enough and not text.startswith(PARTIAL):
                return searched - count
            count *= 2
        return 0

    def _contains(self, text: str) -> bool:
        return any(string in text for string in self._strings)

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._codec.decode(tuple(token_ids))
