"""Every process listens on a port of its own, and messages between processes of this machine have a limit."""

import pytest
from msgspec import Struct

from arl.launch.frames import FrameError, FrameReader, frame
from arl.launch.network import LOOPBACK, free_listener


class Note(Struct):
    """Hold a message of any length."""

    text: str


def test_a_port_that_is_held_without_a_listener_is_not_given_away() -> None:
    with free_listener(LOOPBACK) as held, free_listener(LOOPBACK) as other:
        other.listen()
        assert held.getsockname() != other.getsockname()


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="Cannot assign requested address"):
        free_listener("192.0.2.1")


def test_a_frame_that_is_too_long_is_refused_with_its_length_and_the_limit() -> None:
    data = frame(Note("x" * 2000))
    with pytest.raises(FrameError, match=rf"of {len(data) - 4:,} bytes, and one may have at most 1,200"):
        list(FrameReader(1200).feed(data))
