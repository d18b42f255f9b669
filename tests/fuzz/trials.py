"""Try one edge of arl with many damaged inputs, and count how the trials ended.

    Random ─► an edge draws a Trial ─► it is done and timed ─► success, the documented error, or a failure

An edge is where a value enters: a recipe, an HTTP body, a checkpoint. Hypothesis draws a few hundred trials of each in
CI and shrinks those that fail; `python -m tests.fuzz EDGE` draws as many as it is told.
"""

import contextlib
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from types import FrameType

from msgspec import Struct

from arl.errors import ArlError, InputError, leaves

LONGEST_MESSAGE = 4000  # characters of an error
MOST_MEMORY = 500 << 20  # by which the peak of this process may grow in one trial, bytes
HUNG_SECONDS = 60.0


class Trial(Struct, frozen=True):
    """Hold one damaged input.

    Args:
        input: what it is, short enough to be printed.
        do: uses it. Returns if that succeeds; raises what its edge documents if it is refused.
    """

    input: str
    do: Callable[[], None]


Draw = Callable[[Random], Trial]


class Edge(Struct, frozen=True):
    """Hold a place where values enter, and how it is tried.

    Args:
        prepare: makes what trials need in an empty folder, yields the function that draws them, and checks at the end
            that servers which took part live and have changed nobody else's answer.
        trials: how many the README's test command draws.
        refuses: what a trial may raise.
    """

    prepare: Callable[[Path], AbstractContextManager[Draw]]
    trials: int = 200
    refuses: type[ArlError] = InputError


class Failed(Exception):
    """Report that a trial ended as it must not. The message begins with how."""


class Ended(Struct, frozen=True):
    """Hold how a trial ended."""

    refusal: str  # the error's message; empty: success
    seconds: float


def done(trial: Trial, refuses: type[ArlError], longest: float) -> Ended:
    """Do a trial of at most `longest` seconds, which may raise `refuses`.

    Raises:
        Failed: it took too long or too much memory, raised anything else, or said too much.
    """
    refusal = ""
    peak = peak_memory()
    began = time.monotonic()
    try:
        with _alarm(HUNG_SECONDS):
            trial.do()
    except refuses as error:
        refusal = str(error) or type(error).__name__
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise Failed(f"{_how(error)}: {trial.input}\n{_frames(error)}") from error
    seconds = time.monotonic() - began
    grown = peak_memory() - peak
    if seconds > longest:
        raise Failed(f"slow: {seconds:.1f} s: {trial.input}")
    if grown > MOST_MEMORY:
        raise Failed(f"large: {grown >> 20} MiB of memory: {trial.input}")
    if len(refusal) > LONGEST_MESSAGE:
        raise Failed(f"long: a message of {len(refusal)} characters: {trial.input}")
    return Ended(refusal, seconds)


def peak_memory() -> int:
    """Return the most memory that this process has had, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _how(error: BaseException) -> str:
    if any(isinstance(leaf, _HungError) for leaf in leaves(error)):  # a task group wraps it
        return f"hung: {HUNG_SECONDS:g} s"
    return f"raised {type(error).__name__}"


def _frames(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-LONGEST_MESSAGE:]


class _HungError(BaseException):
    """Interrupt a trial that hangs; not an Exception, so that the code under trial does not catch it."""


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise _HungError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
