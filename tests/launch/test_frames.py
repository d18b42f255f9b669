"""Frames over the connections between processes of one machine."""

import asyncio
from collections.abc import Callable

import pytest
from msgspec import Struct

from arl.launch.frames import FrameError, FrameReader, frame, read_message

LIMIT = 1200


class Note(Struct):
    """Hold a message of any length."""

    text: str


def read_at_once(data: bytes) -> None:
    list(FrameReader(LIMIT).feed(data))


def read_from_stream(data: bytes) -> None:
    async def read() -> None:
        stream = asyncio.StreamReader()
        stream.feed_data(data)
        await read_message(stream, Note, LIMIT)

    asyncio.run(read())


@pytest.mark.parametrize("read", [read_at_once, read_from_stream])
def test_a_frame_that_is_too_long_is_refused_with_its_length_and_the_limit(read: Callable[[bytes], None]) -> None:
    data = frame(Note("x" * 2000))
    size = len(data) - 4
    with pytest.raises(FrameError, match=rf"of {size:,} bytes, and one may have at most {LIMIT:,}"):
        read(data)
