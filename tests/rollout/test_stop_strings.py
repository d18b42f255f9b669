"""A turn ends with the first token after which its text contains a stop string, however the tokens arrive."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from arl import clock
from arl.rollout.env import Session
from arl.types import Completion, GenerateRequest, Increment, Response, SamplingParams, Turn
from tests.examples import examples
from tests.fakes import NullCodec

SPECIAL = b""  # a token without text


class ByteLevelCodec(NullCodec):
    """Token i is the i-th piece of bytes; incomplete characters decode to U+FFFD, as in GPT-2 and Qwen."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces

    def decode(self, token_ids: tuple[int, ...]) -> str:
        known = [token for token in token_ids if token < len(self.pieces)]
        return b"".join(self.pieces[token] for token in known).decode("utf-8", errors="replace")


class ByteFallbackCodec(ByteLevelCodec):
    """A piece of one byte is a fallback token, as in Llama 2: a row of them that is not UTF-8 is lost as a whole."""

    _decoder: ClassVar[decoders.Decoder] = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])

    def decode(self, token_ids: tuple[int, ...]) -> str:
        tokens = []
        for token in token_ids:
            piece = self.pieces[token]
            if piece != SPECIAL:
                tokens.append(f"<0x{piece[0]:02X}>" if len(piece) == 1 else piece.decode())
        return str(self._decoder.decode(tokens))


@dataclass
class Reciter:
    """An engine that says tokens 0, 1, 2 … in increments of the given sizes; it may be cut off after some of them."""

    total: int
    sizes: Sequence[int]
    cut_after: int | None = None
    closed: bool = False

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        said = len(request.input_ids) - 1  # after the prompt's one token
        try:
            for number, size in enumerate(self.sizes):
                if number == self.cut_after:
                    raise ConnectionError
                tokens = tuple(range(said, min(said + size, self.total)))
                said += len(tokens)
                is_last = said == self.total
                versions = (number,) * len(tokens)
                yield Increment(tokens, tuple(map(float, tokens)), versions, "length" if is_last else None)
                if is_last:
                    return
        finally:
            self.closed = True


def session(codec: NullCodec, stop: Sequence[str], engine: Reciter, journal: tuple[Turn, ...]) -> Session:
    sampling = SamplingParams(engine.total)
    return Session(cast(Any, engine), codec, sampling, (7,), 1000, "g0.0", "g0", journal, stop)


@st.composite
def spoken(draw: st.DrawFn, codec_class: type[ByteLevelCodec]) -> tuple[ByteLevelCodec, list[str]]:
    """Draw tokens, and stop strings of which some are in their text."""
    text = draw(st.text("ab\n é€😀", min_size=1, max_size=60))
    starts = st.integers(0, len(text) - 1)
    inside = st.builds(lambda start, size: text[start : start + size], starts, st.integers(1, 6))
    stop = draw(st.lists(inside | st.text("ab\n€😀", min_size=1, max_size=3), min_size=1, max_size=3))
    if codec_class is ByteFallbackCodec:
        chunks = [
            [bytes([byte]) for byte in char.encode()] if draw(st.booleans()) else [char.encode()] for char in text
        ]
        pieces = [piece for chunk in chunks for piece in chunk]
    else:
        encoded = text.encode()
        cuts = sorted(draw(st.sets(st.integers(1, max(len(encoded) - 1, 1)))))
        pieces = [encoded[a:b] for a, b in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    for place in draw(st.lists(st.integers(0, len(pieces)), max_size=10)):
        pieces.insert(place, SPECIAL)
    return codec_class(pieces), stop


@pytest.mark.parametrize("codec_class", [ByteLevelCodec, ByteFallbackCodec])
@examples(3)
@given(data=st.data())
def test_the_cut_is_where_a_brute_force_search_finds_it(codec_class: type[ByteLevelCodec], data: st.DataObject) -> None:
    """Also where the engine was lost in mid-turn and the episode is resumed from its journal."""
    codec, stop = data.draw(spoken(codec_class))
    total = len(codec.pieces)
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=total, max_size=total))
    lost_after = data.draw(st.none() | st.integers(0, total))

    async def main() -> tuple[Completion, Response, Reciter]:
        engine = Reciter(total, sizes, lost_after)
        episode = session(codec, stop, engine, ())
        try:
            completion = await episode.generate()
        except ConnectionError:
            engine = Reciter(total, sizes)
            episode = session(codec, stop, engine, episode.journal())
            completion = await episode.generate()
        episode.end()
        return completion, episode.seen_by_reward(), engine

    completion, response, engine = clock.run(main, virtual=True)
    texts = [codec.decode(tuple(range(end))) for end in range(1, total + 1)]
    matches = (end for end, text in enumerate(texts, 1) if any(string in text for string in stop))
    expected = next(matches, None)
    assert completion.token_ids == tuple(range(expected or total))
    assert completion.logprobs == tuple(map(float, completion.token_ids))
    assert completion.finish_reason == ("length" if expected is None else "stop")
    assert response.truncated == (expected is None)
    assert engine.closed
    text = codec.decode(completion.token_ids)
    if expected is None:
        assert response.text == text
    else:
        assert response.text == text[: min(text.find(string) for string in stop if string in text)]
