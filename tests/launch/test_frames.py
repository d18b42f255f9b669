"""Frames over the connections between processes of one machine."""

import pytest
from msgspec import Struct

from arl.launch.frames import FrameError, FrameReader, frame


class Note(Struct):
    """Hold a message of any length."""

    text: str


def test_a_frame_that_is_too_long_is_refused_with_its_length_and_the_limit() -> None:
    data = frame(Note("x" * 2000))
    with pytest.raises(FrameError, match=rf"of {len(data) - 4:,} bytes, and one may have at most 1,200"):
        list(FrameReader(1200).feed(data))
