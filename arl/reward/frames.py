"""Cut what processes of this machine say to each other over a socket pair into frames: 4-byte length + msgpack."""

import os
import socket
from collections.abc import Iterator
from typing import TypeVar

import msgspec
from msgspec import Struct

_HEADER = 4  # bytes of a frame's length
Message = TypeVar("Message", bound=Struct)


class FrameError(Exception):
    """Report that a frame is longer than its reader allows, or no message of the kind that is due."""


class FrameReader:
    """Cut a stream of bytes into frames.

    Args:
        longest: bytes of a frame; None: any length.
    """

    def __init__(self, longest: int | None = None) -> None:
        self._longest = longest
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add what has arrived, and yield the bodies of the frames that it completes.

        Raises:
            FrameError: a frame is too long.
        """
        self._bytes += data
        while len(self._bytes) >= _HEADER:
            size = int.from_bytes(self._bytes[:_HEADER], "big")
            if self._longest is not None and size > self._longest:
                raise FrameError(f"a message of {size:,} bytes, and one may have at most {self._longest:,}")
            end = _HEADER + size
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[_HEADER:end])
            del self._bytes[:end]
            yield body


def standard_input_socket() -> socket.socket:
    """Take over the socket that this process was started with as its standard input, which is empty from then on.

    What is started from here does not inherit it.
    """
    connection = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return connection


def frame(message: Struct) -> bytes:
    """Encode a message behind its length."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_HEADER, "big") + body


def decode(body: bytes, kind: type[Message]) -> Message:
    """Decode the body of a frame.

    Raises:
        FrameError: it is no message of this kind.
    """
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"no {kind.__name__}: {error}") from None
