"""Define what controller, worker and lane send each other: frames of 4-byte length + msgpack.

controller ── RewardCall ──► worker ── RewardCall ──► lane      one response, for one reward function
controller ◄─── Answer ───── worker ◄─── Answer ───── lane      what it returned, or why there is no grade
"""

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from arl.types import Problem, Response

READY = 0  # id of the answer that reports that a worker has imported its functions; calls count from 1
_HEADER = 4  # bytes of a frame's length


class Settings(Struct, frozen=True):
    """Hold what a worker is started with."""

    functions: tuple[str, ...]  # module:function
    timeout: float  # seconds of one call
    memory_gb: float  # that a call may allocate


class RewardCall(Struct, frozen=True):
    """Ask for the grade of one response."""

    id: int
    function: int  # index in Settings.functions
    problem: Problem
    response: Response


class Verdict(Struct, frozen=True):
    """Hold what a reward function gave one response, before weights and shaping."""

    reward: float = 0.0  # what it returned, or the sum of its parts
    parts: dict[str, float] = {}  # as it named them
    error: str = ""  # why there is no grade, on one line; empty: there is one
    traceback: str = ""  # where it raised, if it did


class Answer(Struct, frozen=True):
    """Answer a call, or report that it goes on aside."""

    id: int
    verdict: Verdict | None = None  # None: no verdict yet, and the worker takes the next call


class FrameError(Exception):
    """Report that a frame is longer than its reader allows."""


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
                raise FrameError(f"{size} bytes")
            end = _HEADER + size
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[_HEADER:end])
            del self._bytes[:end]
            yield body


def frame(message: Struct) -> bytes:
    """Encode a message behind its length."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_HEADER, "big") + body
