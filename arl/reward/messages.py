"""Define what controller, worker and lane send each other, in frames of arl.launch.frames.

controller ── RewardCall ──► worker ── RewardCall ──► lane      one response, for one reward function
controller ◄─── Answer ───── worker ◄─── Answer ───── lane      what it returned, or why there is no grade
"""

import math

from msgspec import Struct

from arl.errors import printable
from arl.types import LARGEST_REWARD, Problem, Response

MOST_PARTS = 256
LONGEST_NAME = 200  # characters, of a part
LONGEST_ERROR = 1000  # characters
LONGEST_TRACEBACK = 3000
LONGEST_PART = 4 * LONGEST_NAME + 14  # bytes: four for a character, the number, and what msgpack adds to both
LONGEST_ANSWER = MOST_PARTS * LONGEST_PART + 4 * (LONGEST_ERROR + LONGEST_TRACEBACK) + 1000  # bytes of a frame

TRIES = 2  # of a call that fails in its lane
READ_BYTES = 1 << 16  # at once from a connection
READY = 0  # id of the answer of a worker that has imported its functions, and of a lane that is up; calls count from 1


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
    is_alone: bool = False  # others wait for it, but not in the worker


class Verdict(Struct, frozen=True):
    """Hold what a reward function gave one response, before weights and shaping."""

    reward: float = 0.0  # what it returned, or the sum of its parts
    parts: dict[str, float] = {}  # as it named them
    error: str = ""  # why there is no grade, on one line; empty: there is one
    traceback: str = ""  # where it raised, if it did
    is_disturbed: bool = False  # its process was lost or spoiled, which may be the doing of another one


def fault_in(verdict: Verdict) -> str:
    """Say what a reward function cannot have given; empty: it is a verdict. Whoever receives one looks, because the
    process that has sent it ran code that nobody has read.
    """
    numbers = [verdict.reward, *verdict.parts.values()]
    if not all(is_reward(number) for number in numbers):
        return "a reward that is no number from -1e9 to 1e9"
    if len(verdict.parts) > MOST_PARTS or not all(is_part_name(name) for name in verdict.parts):
        return "too many parts, or a name that is no short line"
    if len(verdict.error) > LONGEST_ERROR or "\n" in verdict.error:
        return "an error that is no short line"
    return ""


def is_reward(number: float) -> bool:
    """Return whether a number can be trained on."""
    return math.isfinite(number) and abs(number) <= LARGEST_REWARD


def is_part_name(text: str) -> bool:
    """Return whether a text is a line that can be shown, of at most LONGEST_NAME characters, and not blank."""
    return len(text) <= LONGEST_NAME and printable(text) == text and "\n" not in text and bool(text.strip())


class Answer(Struct, frozen=True):
    """Answer a call, or report that it goes on aside."""

    id: int
    verdict: Verdict | None = None  # None: no verdict yet, and the worker takes the next call
